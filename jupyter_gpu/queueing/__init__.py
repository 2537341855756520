"""Who starts, who waits, and why: pure functions from what is known to decisions. No I/O, no clock."""

from jupyter_gpu.queueing.admission import Admission, Claim, admit, totals

__all__ = ["Admission", "Claim", "admit", "totals"]
