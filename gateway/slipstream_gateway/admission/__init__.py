"""Admission control: an adaptive limit per pair, a fair and bounded queue, and refusals.

Under overload three measures apply, in this order. As places get scarce, drafts are shortened and then speculation
stops (`decide.route.pressure`). When all places are taken, requests wait, those of low priority behind all others. A
request that cannot be served in time is refused with 429 and a time for the retry.
"""

from slipstream_gateway.admission.admission import Admission, PairAdmission
from slipstream_gateway.admission.limit import Sample

__all__ = ["Admission", "PairAdmission", "Sample"]
