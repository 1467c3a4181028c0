"""The rollout of speculation, class by class: evidence, its analysis, promotion and rollback."""
