"""A test whether speculative answers take longer than the control's at the same time: blocked differences.

Both arms slow down together when servers are busy, so the times of one arm alone are no evidence about speculation. The
answers of a class form blocks, in the order in which they end. Each request of a block was assigned to its arm at
random. If speculation changes nothing, the difference of a block's two means is therefore 0 on average, under any load.
Three steps reduce its variance:

- Times are divided by their block's mean, so that busy blocks do not outweigh quiet ones.
- The part of the times that the number of output tokens explains is subtracted (Deng, Xu, Kohavi and Walker, "CUPED",
  2013). Lossless speculation does not change that number.
- A block with s speculative answers and c answers of the control has the weight s · c / (s + c).

The size of a block is chosen before its first answer. If a block waited for an answer of a missing arm, that arm would
always be at its end, and a rising load would look like a loss.

The control's share depends on the evidence of earlier blocks. It is constant within a block, since a change of the
share begins a new block. Requests that are drawn with the share of an alarm have blocks of their own. Otherwise the arm
with the increased share would be more frequent at the block's end, with the load of that time. Earlier blocks may
determine the shares, and thereby the weights, of later blocks: given all earlier blocks, each difference is still 0 on
average.

Two tests search for a loss. Both use likelihood ratios of normal block means with a loss to those without. The first
covers the time since the comparison began (a sequential test; Wald, "Sequential Analysis", 1947). The second covers the
time since any later moment (CUSUM; Page, "Continuous inspection schemes", Biometrika 1954). It requires more evidence,
since there are many such moments. The CUSUM censors the evidence of a block (Huber, "A robust version of the
probability ratio test", 1965).
"""

from __future__ import annotations

import math

import msgspec

from slipstream_operator.rollout.analysis.means import boundary, log_mean

FALSE_LOSS = 0.002
"""The probability that the test since the comparison began ever finds a loss where there is none, if the variance were
known. It is estimated from few blocks, which doubles the probability."""
FEWEST_BLOCKS = 5
"""The number of blocks with both arms before a loss counts as shown."""
# A small and a large loss: a test for one of them finds the other one late.
_LOSSES = (0.1, 0.35)
# The average number of answers of the rarer arm in a block. With more of them, the load changes within the block.
_RARER = 1.0
_SMALLEST, _LARGEST = 4, 200
_KEEP_SHARE = 1.0 - 1.0 / 500.0  # the arms' shares change with the rollout
# The variance is estimated from about the last 50 blocks, by the steps from each block's difference to the next one: a
# loss that begins is one large step, and no variance. At the beginning it is the variance within each arm, with the
# weight of ten blocks. Before that, it is the square of half the mean, with the weight of five answers.
_KEEP_BLOCK = 1.0 - 1.0 / 50.0
_BLOCKS_OF_ARMS = 10.0
_PRIOR_ANSWERS, _PRIOR_VARIANCE = 5.0, 0.25
_PRIOR_SPREAD = 3.0  # prior weight, in squares of a block's mean, of times in proportion to the tokens
_MOST = 3.0  # maximum difference of a block, in block means: one very long answer is no evidence about many answers
# The maximum difference of a block in the CUSUM, in its standard errors. Times have heavier tails than the normal
# distribution. Among thousands of possible beginnings, a few long answers in a row would be proof.
_MOST_SIGMAS = 1.5
_LEAST = 0.01  # of a block's mean for the control


class _Arm(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """Sums over the answers of one arm in a block."""

    n: int = 0
    seconds: float = 0.0
    tokens: float = 0.0
    seconds_squared: float = 0.0
    products: float = 0.0
    tokens_squared: float = 0.0

    def add(self, seconds: float, tokens: float) -> None:
        self.n += 1
        self.seconds += seconds
        self.tokens += tokens
        self.seconds_squared += seconds * seconds
        self.products += seconds * tokens
        self.tokens_squared += tokens * tokens

    def unexplained(self, per_token_s: float) -> float:
        """The sum of squares about the arm's mean, without the part that the tokens explain."""
        if not self.n:
            return 0.0
        squares = self.seconds_squared - per_token_s * (2.0 * self.products - per_token_s * self.tokens_squared)
        return max(squares - (self.seconds - per_token_s * self.tokens) ** 2 / self.n, 0.0)


class Blocks(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """Sums over several blocks.

    `n` counts the blocks. `differences` and `shares` are weighted sums: of the blocks' differences, and of their shares
    of speculative answers. `speculative` and `control` count the answers of each arm.
    """

    n: int = 0
    weight: float = 0.0
    differences: float = 0.0
    shares: float = 0.0
    speculative: int = 0
    control: int = 0

    def add(self, difference: float, weight: float, speculative: int, control: int) -> None:
        self.n += 1
        self.weight += weight
        self.differences += weight * difference
        self.shares += weight * speculative / (speculative + control)
        self.speculative += speculative
        self.control += control

    def merge(self, other: Blocks) -> None:
        """Add the blocks of another comparison."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def difference(self) -> float:
        """The weighted mean of the differences. The unit is the mean time of both arms in a block."""
        return self.differences / self.weight if self.weight else 0.0

    def change(self, difference: float) -> float:
        """`difference` as a share of the control's mean."""
        control = 1.0 - difference * self.shares / self.weight if self.weight else 1.0
        return difference / max(control, _LEAST)


class _Block(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """The current block of requests whose arms were drawn with the same probabilities. `share` is the control's share
    of the latest answers. `size` is the size of the block, 0 before its first answer."""

    share: float = 0.5
    size: int = 0
    speculative: _Arm = msgspec.field(default_factory=_Arm)
    control: _Arm = msgspec.field(default_factory=_Arm)

    def take(self, seconds: float, tokens: int, *, control: bool) -> bool:
        """Add an answer. Returns whether the block is complete."""
        if not self.size:
            rarer = max(min(self.share, 1.0 - self.share), _RARER / _LARGEST)
            self.size = max(math.ceil(_RARER / rarer), _SMALLEST)
        self.share += (float(control) - self.share) * (1.0 - _KEEP_SHARE)
        (self.control if control else self.speculative).add(seconds, float(tokens))
        return self.speculative.n + self.control.n >= self.size

    def empty(self) -> None:
        """Drop the answers of the block."""
        self.speculative, self.control, self.size = _Arm(), _Arm(), 0


class PairedTimes(_Block, kw_only=True, array_like=True, gc=False):
    """The comparison of a class, with its current block; written into the checkpoint as it is, so that new fields
    belong at the end.

    `alarmed` is the current block of answers whose arms were drawn with the control's share of an alarm. `products` /
    `spread` is the regression slope of time on tokens, both in block means. `free` and `unexplained` are the degrees of
    freedom and the sum of squares within arms. `squares` is the sum over `blocks` of the squared steps between two
    blocks' differences, each divided by the sum of the inverse weights. All six decay. `latest`, with `latest_weight`,
    is the last block's difference. `since_began` and `since_doubt` are log likelihood ratios of the sequential test and
    of the CUSUM, one for each of `_LOSSES`; `began` and `doubted` are their blocks. `step` has the blocks since the
    rollout's step began. `step_speculative` and `step_control` count all answers since then.
    """

    products: float = _PRIOR_SPREAD
    spread: float = _PRIOR_SPREAD
    free: float = 0.0
    unexplained: float = 0.0
    blocks: float = 0.0
    latest_weight: float = 0.0
    latest: float = 0.0
    squares: float = 0.0
    since_began: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(_LOSSES))
    since_doubt: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(_LOSSES))
    began: Blocks = msgspec.field(default_factory=Blocks)
    doubted: Blocks = msgspec.field(default_factory=Blocks)
    step: Blocks = msgspec.field(default_factory=Blocks)
    step_speculative: int = 0
    step_control: int = 0
    alarmed: _Block = msgspec.field(default_factory=_Block)

    def add(self, seconds: float, tokens: int, *, control: bool, alarmed: bool = False) -> None:
        """Add an answer with its end-to-end time and number of output tokens, both above 0."""
        self.step_control += control
        self.step_speculative += not control
        block = self.alarmed if alarmed else self
        if block.take(seconds, tokens, control=control):
            fast, slow = block.speculative, block.control
            block.empty()
            self._close(fast, slow)

    def begin_step(self) -> None:
        """Begin the comparison of a new step of the rollout. The tests for a loss continue."""
        self.empty()
        self.alarmed.empty()
        self.step, self.step_speculative, self.step_control = Blocks(), 0, 0

    def found_loss(self, alarm_at: float, *, margin: float) -> Blocks | None:
        """The blocks that show a loss: speculative answers take longer, by more than `margin` as a share of the
        control's time. None if no loss is shown. Two false alarms are about exp(`alarm_at`) blocks or more apart."""
        for blocks, logs, wanted in (
            (self.began, self.since_began, -math.log(FALSE_LOSS)),
            (self.doubted, self.since_doubt, alarm_at),
        ):
            shown = blocks.n >= FEWEST_BLOCKS and log_mean(logs) >= wanted
            if shown and blocks.change(blocks.difference) > margin:
                return blocks
        return None

    @property
    def doubt(self) -> float:
        """The CUSUM's evidence of a loss, as a log likelihood ratio; 0 or less without evidence."""
        return log_mean(self.since_doubt) if self.doubted.n >= FEWEST_BLOCKS else 0.0

    def upper_change(self, *, confidence: float, tuned_for: int) -> float | None:
        """The upper bound of the step's change, as a share of the control's mean. It is valid at all times at once with
        `confidence`, and tightest after `tuned_for` answers of each arm. None before there are enough blocks."""
        return self._bound(1.0, confidence, tuned_for)

    def lower_change(self, *, confidence: float, tuned_for: int) -> float | None:
        """The lower bound of the step's change, under the conditions of `upper_change`."""
        return self._bound(-1.0, confidence, tuned_for)

    def _bound(self, side: float, confidence: float, tuned_for: int) -> float | None:
        if self.step.n < FEWEST_BLOCKS:
            return None
        half = boundary(self.step.weight, confidence=confidence, tuned_for=tuned_for / 2.0)
        return self.step.change(self.step.difference + side * half * math.sqrt(self.variance / self.step.weight))

    def _close(self, fast: _Arm, slow: _Arm) -> None:
        """Add the difference of a complete block if it has answers of both arms."""
        n = fast.n + slow.n
        mean_s, mean_tokens = (fast.seconds + slow.seconds) / n, (fast.tokens + slow.tokens) / n
        per_token_s = self.products / self.spread * mean_s / mean_tokens
        self.products += (fast.products + slow.products) / (mean_s * mean_tokens) - n
        self.spread += (fast.tokens_squared + slow.tokens_squared) / mean_tokens**2 - n
        unexplained = (fast.unexplained(per_token_s) + slow.unexplained(per_token_s)) / mean_s**2
        self.unexplained = self.unexplained * _KEEP_BLOCK + unexplained
        self.free = self.free * _KEEP_BLOCK + max(fast.n - 1, 0) + max(slow.n - 1, 0)
        if fast.n and slow.n:
            seconds = fast.seconds / fast.n - slow.seconds / slow.n
            seconds -= per_token_s * (fast.tokens / fast.n - slow.tokens / slow.n)
            self._take(min(max(seconds / mean_s, -_MOST), _MOST), fast.n, slow.n)

    def _take(self, difference: float, speculative: int, control: int) -> None:
        """Add the difference of a block with both arms."""
        weight = speculative * control / (speculative + control)
        if self.latest_weight:
            step = (difference - self.latest) ** 2 / (1.0 / weight + 1.0 / self.latest_weight)
            self.blocks = self.blocks * _KEEP_BLOCK + 1.0
            self.squares = self.squares * _KEEP_BLOCK + min(step, _MOST**2)
        self.latest, self.latest_weight = difference, weight
        if max(self.since_doubt) <= 0.0:
            self.doubted = Blocks()
        for seen in (self.began, self.doubted, self.step):
            seen.add(difference, weight, speculative, control)
        variance = self.variance
        counted = min(difference, _MOST_SIGMAS * math.sqrt(variance / weight))
        for index, loss in enumerate(_LOSSES):
            per_loss = weight * loss / variance
            self.since_began[index] += per_loss * (difference - loss / 2.0)
            self.since_doubt[index] = max(self.since_doubt[index], 0.0) + per_loss * (counted - loss / 2.0)

    @property
    def variance(self) -> float:
        """The variance of the answers in a block, in squares of its mean, without the part that the tokens explain."""
        within = (self.unexplained + _PRIOR_ANSWERS * _PRIOR_VARIANCE) / (self.free + _PRIOR_ANSWERS)
        return (self.squares + _BLOCKS_OF_ARMS * within) / (self.blocks + _BLOCKS_OF_ARMS)
