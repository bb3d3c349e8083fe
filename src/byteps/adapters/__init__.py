"""What all framework adapters share, free of any framework.

``current``     the session behind ``rank()``, ``push_pull()`` and friends
``basics``      the public calls that touch no tensor
``exports``     what every adapter exports as it is
``reductions``  average/op arguments, tensor names, root ranks
``calls``       one round of one tensor, with the user's arguments resolved (``arguments``, ``signatures``)
``arrays``      rounds of numpy arrays
``gradients``   names, priorities and factors of an optimizer's gradients; ``usage`` which ranks have them
``compression`` casts to 16 bits
``parameters``  checks on ``named_parameters``
``variables``   arrays that become the root's
``objects``     Python objects as bytes: msgpack, or pickle when asked for
``exchange``    objects between ranks
"""

from __future__ import annotations
