"""``horovod.common.exceptions``."""

from __future__ import annotations

from byteps.adapters.builds import HorovodInternalError as HorovodInternalError


class HostsUpdatedInterrupt(RuntimeError):
    """Raised by elastic jobs when hosts come or go. Membership is fixed here, so nothing raises it."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts have changed")
        self.skip_sync = skip_sync
