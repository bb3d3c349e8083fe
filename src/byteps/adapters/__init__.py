"""What all framework adapters share, free of any framework.

``current``     the session behind ``rank()``, ``push_pull()`` and friends
``basics``      the public calls that touch no tensor
``reductions``  average/op arguments, tensor names, root ranks
``parameters``  checks on ``named_parameters``
``objects``     Python objects as bytes: msgpack, or pickle when asked for
``exchange``    objects between ranks
"""

from __future__ import annotations
