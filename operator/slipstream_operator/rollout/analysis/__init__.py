"""Statistics of live traffic: guards, confidence sequences and windows, in one ledger per policy, and in one per new
revision of a pair. Pure."""
