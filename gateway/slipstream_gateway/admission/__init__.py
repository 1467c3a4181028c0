"""How much one worker takes on: a limit per pair that follows its latency, a fair and bounded queue, a no beyond.

Under too much work, in this order: as places get scarce drafts get shorter and speculation stops (`routing.pressure`);
when all are taken requests wait, who has low priority behind all others; and what cannot be served in time is refused
with 429 and a time to come back.
"""

from slipstream_gateway.admission.admission import Admission, PairAdmission
from slipstream_gateway.admission.limit import Sample

__all__ = ["Admission", "PairAdmission", "Sample"]
