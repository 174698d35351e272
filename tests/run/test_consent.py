"""What a rank does with the verdict on a graph: use it, make it launch what others do, or leave it as it was."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import weft
from weft.run import consent as asking
from weft.run.agreement import Verdict
from weft.run.claims import Launches
from weft.run.consent import consent
from weft.run.entries import Claim
from weft.run.session import Session
from weft.run.settings import Settings

OWN = Launches("step", ("a gather", "another"), (0, 1))
OTHERS = ("both gathers",)
NO, PROPOSED = 'graph step: collective 0 is "both gathers" on rank 0, "a gather" on rank 1', "step as proposed"
CANNOT = "they have no place in common"


class Ranks:
    """All other ranks: they answer claims in turn. `followed` is what this rank was asked to launch."""

    def __init__(self, *verdicts: Verdict, able: bool = True) -> None:
        self._verdicts, self._able = [*verdicts], able
        self.claims: list[Claim] = []
        self.followed: list[tuple[str, ...]] = []

    def agree(self, store: object, rank: int, claim: Claim, *, timeout_s: float, again: bool) -> Verdict:
        self.claims.append(claim)
        return self._verdicts.pop(0)

    def follow(self, lines: Sequence[str]) -> Launches:
        self.followed.append(tuple(lines))
        if not self._able:
            raise weft.AgreementError(CANNOT)
        return Launches("step", tuple(lines), (0, 1))

    def asked(self, monkeypatch: pytest.MonkeyPatch) -> Verdict:
        monkeypatch.setattr(asking, "alone", lambda: False)
        monkeypatch.setattr(asking, "this_rank", lambda: 1)
        monkeypatch.setattr(asking, "_get_default_store", lambda: None)
        monkeypatch.setattr(asking, "SESSION", Session())
        monkeypatch.setattr(asking, "agree", self.agree)
        return consent(OWN, Settings(machine="gloo-cpu"), self.follow)

    @property
    def told(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(claim.key, claim.lines) for claim in self.claims]


def no(lines: tuple[str, ...]) -> Verdict:
    """They differ only in what they launch, and the lowest launches this."""
    return Verdict(False, NO, proposal=Claim("step", (), lines, (0, 1)))


def test_what_is_proposed_is_launched_if_all_can(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(no(OTHERS), Verdict(True))
    assert ranks.asked(monkeypatch).agreed
    assert ranks.followed == [OTHERS]
    assert ranks.told == [("step", OWN.lines), (PROPOSED, OTHERS)]


def test_whose_own_choice_is_proposed_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(no(OWN.lines), Verdict(True))
    assert ranks.asked(monkeypatch).agreed
    assert ranks.followed == []
    assert ranks.told == [("step", OWN.lines), (PROPOSED, OWN.lines)]


def test_if_one_cannot_the_graph_runs_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(no(OTHERS), Verdict(False, "graph step as proposed: rank 1 cannot"), able=False)
    why = f"{NO}; and they cannot all launch the same: graph step as proposed: rank 1 cannot"
    with pytest.warns(weft.WeftWarning) as warned:
        assert ranks.asked(monkeypatch) == Verdict(False, why)
    assert [str(one.message) for one in warned] == [f"weft: this graph runs as it was, on all ranks: {why}"]
    assert ranks.told == [("step", OWN.lines), (PROPOSED, (f"nothing of it, since {CANNOT}",))]


def test_what_was_agreed_upon_before_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(Verdict(False, NO, terms=Claim("step", (), OTHERS, (0, 1))))
    assert ranks.asked(monkeypatch).agreed
    assert (ranks.followed, len(ranks.claims)) == ([OTHERS], 1)


def test_what_was_agreed_upon_before_and_cannot_be_launched_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(Verdict(False, NO, terms=Claim("step", (), OTHERS, (0, 1))), able=False)
    with pytest.raises(weft.AgreementError) as caught:
        ranks.asked(monkeypatch)
    assert str(caught.value) == (
        f"this rank compiled a graph anew, and the others go on with what all agreed upon before: {CANNOT}. So they "
        "would hang. Compile with dynamic=True, or mark what changes with torch._dynamo.mark_dynamic before the first "
        "step, so that no rank compiles alone"
    )
