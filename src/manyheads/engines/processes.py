"""Worker processes, forked from this one, each with a client room of its own for the whole stage."""

from __future__ import annotations

from manyheads.engines import messages
from manyheads.engines.base import Say, cores
from manyheads.engines.forks import Forks, check_forks, watchful
from manyheads.engines.pool import Pool
from manyheads.engines.remote import Remote
from manyheads.local.setting import Setting


class Processes(Remote):
    """Clients side by side on one machine."""

    check = staticmethod(check_forks)

    def __init__(self, setting: Setting, workers: int | None = None, say: Say = lambda line: None) -> None:
        super().__init__(Pool(Forks(lambda: messages.Handler(watchful(setting))), workers or cores(), say))
