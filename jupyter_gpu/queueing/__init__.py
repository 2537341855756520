"""Who starts, who waits, who must yield, and why: pure functions from what is known to decisions. No I/O, no clock."""

from jupyter_gpu.queueing.deciding import decide
from jupyter_gpu.queueing.decisions import Decision, State, Yielding
from jupyter_gpu.queueing.forecasting import forecast
from jupyter_gpu.queueing.limits import check_quota
from jupyter_gpu.queueing.standing import queue_statuses

__all__ = ["Decision", "State", "Yielding", "check_quota", "decide", "forecast", "queue_statuses"]
