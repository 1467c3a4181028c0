"""The models that are trained, with their losses."""
