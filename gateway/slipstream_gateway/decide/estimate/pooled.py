"""Running means: of a class, and of a pair over its classes."""

from __future__ import annotations

# The window of a class, in observations; and the maximum weight of a class in its pair.
_KEEP = 1.0 - 1.0 / 30.0
_CAP = 20.0


class RunningMean:
    """A mean with forgetting, and the weight of the observations behind it."""

    __slots__ = ("mean", "weight")

    def __init__(self) -> None:
        self.weight = self.mean = 0.0

    def add(self, value: float, weight: float) -> None:
        """Records an observation; `weight` is in (0, 1]."""
        self.weight = self.weight * _KEEP + weight
        self.mean += (value - self.mean) * weight / self.weight


class PooledMean:
    """The mean over classes, of which each counts for at most `_CAP` observations, and their total `weight`: one busy
    class does not speak for all."""

    __slots__ = ("_classes", "_sum", "weight")

    def __init__(self) -> None:
        self._classes: dict[str, RunningMean] = {}
        self._sum = self.weight = 0.0

    @property
    def mean(self) -> float:
        return self._sum / self.weight if self.weight > 0.0 else 0.0

    @property
    def classes(self) -> int:
        return len(self._classes)

    def get(self, name: str) -> RunningMean | None:
        """The mean of class `name`; None without an observation."""
        return self._classes.get(name)

    def add(self, name: str, value: float, weight: float = 1.0) -> RunningMean:
        """Records an observation of class `name`, from a closed set, and returns its mean."""
        found = self._classes.get(name)
        if found is None:
            found = self._classes[name] = RunningMean()
        self._count(found, -1.0)
        found.add(value, weight)
        self._count(found, 1.0)
        return found

    def _count(self, member: RunningMean, sign: float) -> None:
        counted = sign * min(member.weight, _CAP)
        self.weight += counted
        self._sum += counted * member.mean
