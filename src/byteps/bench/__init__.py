"""``byteps bench``: how fast push_pull and training are in a job of the user's own.

``command`` ``options`` the command line; starts a job on this machine where asked to
``membership``          joins the job that this process was started in
``plan`` ``values``     sizes and dtypes to measure; contributions and the sums that they must give
``pushpull``            time of push_pull; ``usage`` finds the CPU time of servers on the workers' hosts
``training`` ``models`` training steps with and without communication; the only modules that import torch
``progress`` ``report`` what is shown meanwhile, and at the end
"""

from __future__ import annotations
