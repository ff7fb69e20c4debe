"""In-network gradient aggregation: the client of a host's Sumac daemon.

>>> import numpy as np, sumac
>>> client = sumac.Client("/run/sumac/sumac.sock")
>>> job = client.open("digits", rank=0, world=4)
>>> gradient = job.buffer((64, 10), np.float32)
>>> job.allreduce(gradient)
"""

from .client import Client
from .connection import Completion, Loss, Timing
from .errors import ConnectionLost, JobFailed, SumacError, WaitTimeout
from .job import Handle, Job, SegmentHandles, layer_priority
from .memory import from_bfloat16, to_bfloat16
from .segments import Segment

__all__ = [
    "Client",
    "Completion",
    "ConnectionLost",
    "Handle",
    "Job",
    "JobFailed",
    "Loss",
    "Segment",
    "SegmentHandles",
    "SumacError",
    "Timing",
    "WaitTimeout",
    "from_bfloat16",
    "layer_priority",
    "to_bfloat16",
]
__version__ = "0.1.0"
