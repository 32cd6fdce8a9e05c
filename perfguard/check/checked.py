"""The results of checking a call."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfguard.model.records import Accuracy, Pass


@dataclass(frozen=True)
class Checked:
    """Result of `check`.

    Attributes:
        forward: one Accuracy for each output tensor, then for each argument of `mutates`.
        backward: one for each gradient; None where there are none.
        problems: problems beyond single comparisons, each a sentence that begins with its subject.
        inputs: dtypes, shapes, strides and values of the inputs, the same in every process.
        notes: remarks for the reader that are no problems.
        varying: outputs and gradients that differ from run to run, by less than eager's own error.
        strides: of the reference's dense outputs, in order: `48,1`.
    """

    forward: list[Accuracy]
    backward: list[Accuracy] | None
    problems: list[str]
    inputs: str
    notes: list[str] = field(default_factory=list)
    varying: list[str] = field(default_factory=list)
    strides: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """Every problem, those of the comparisons first; empty when all is right."""
        accuracies = [*self.forward, *(self.backward or [])]
        return [accuracy.problem for accuracy in accuracies if accuracy.problem] + self.problems

    def of_pass(self, direction: Pass) -> list[Accuracy]:
        """The comparisons of a pass."""
        return self.forward if direction == "forward" else self.backward or []

    def placed(self) -> list[tuple[str, str, bool]]:
        """The problems of the call as given: the output or gradient that each begins with, its words, and whether it is
        the backward pass's. Problems of no single tensor belong to forward, with an empty name."""
        forward, backward = self.of_pass("forward"), self.of_pass("backward")
        found = [(each.output, each.problem, False) for each in forward if each.problem]
        found += [(each.output, each.problem, True) for each in backward if each.problem]
        outputs, gradients = ({each.output for each in part} for part in (forward, backward))
        for problem in self.problems:
            subject = problem.partition(": ")[0]
            name = subject if subject in outputs | gradients else ""
            found.append((name, problem, subject in gradients or subject == "backward"))
        return found
