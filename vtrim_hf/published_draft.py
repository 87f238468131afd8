"""A draft as the Hub tells of it: what was published beside its weights, and nothing of these."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from .plain_facts import DEFAULT_DOMAIN, domain_tag

logger = logging.getLogger(__name__)

_MOST_PER_TOKEN = 2


@dataclass(frozen=True)
class Covered:
    """How much of some data a draft can say.

    Attributes:
        share: of the tokens, from 0 to 1.
        interval: 95 % interval, low and high; None if it is not known.
        heldout: whether the data was held out from the choice of the vocabulary.
    """

    share: float
    interval: tuple[float, float] | None = None
    heldout: bool = False


@dataclass(frozen=True)
class PublishedDraft:
    """What is known of a published draft without its weights.

    Attributes:
        repo_id: `NAMESPACE/NAME`.
        commit: the commit that all of this was read from; `from_pretrained(draft.repo_id,
            revision=draft.commit)` loads exactly this draft.
        revision: the branch, in a repository with one draft a branch; None for main.
        url: where it can be looked at.
        target: Hub id of the model that it drafts for; None if nobody said it.
        vocab_size: V, the target's padded width.
        tokenizer_hash: of the target's tokenizer; None if it is not known.
        body: `"standalone"` or `"eagle3"`.
        k: number of kept ids.
        share_of_vocabulary: k / V.
        fingerprint: of the kept ids, the width and the tokenizer.
        parameters: how many it has; None if it is not known.
        domains: names of the data that was counted.
        coverage: by domain.
        overall: of all domains together; None if nothing was counted.
        acceptance_length: tokens a verification, where it was measured.
        speedup: over the target alone, the median over the prompts, where it was measured; None,
            too, for a figure that cannot be.
        speedup_interval: 95 % interval of that median.
        measured_on: the machine of these figures, and the number of prompts.
        license: as the repository's card says it.
        tags: of the repository.
    """

    repo_id: str
    commit: str
    revision: str | None
    url: str
    target: str | None
    vocab_size: int
    tokenizer_hash: str | None
    body: str
    k: int
    share_of_vocabulary: float
    fingerprint: str
    parameters: int | None = None
    domains: tuple[str, ...] = ()
    coverage: Mapping[str, Covered] = field(default_factory=lambda: MappingProxyType({}))
    overall: Covered | None = None
    acceptance_length: float | None = None
    speedup: float | None = None
    speedup_interval: tuple[float, float] | None = None
    measured_on: str | None = None
    license: str | None = None
    tags: tuple[str, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """`NAMESPACE/NAME`, with `@` and the branch where there is one a draft."""
        return self.repo_id if self.revision is None else f"{self.repo_id}@{self.revision}"

    def serves(self, domain: str) -> int:
        """Tell how well a domain's name fits: 2 it was counted, 1 only a tag says it, 0 not."""
        if any(name.casefold() == domain.casefold() for name in self.domains):
            return 2
        wanted = domain_tag(domain)
        tags = {*self.tags, *map(domain_tag, self.domains)}
        return int(wanted != DEFAULT_DOMAIN and wanted in tags)

    def covered(self, domain: str | None = None) -> Covered | None:
        """Return the coverage of a domain, or of all; None if it is not known."""
        if domain is None:
            return self.overall
        for name, known in self.coverage.items():
            if name.casefold() == domain.casefold():
                return known
        wanted = domain_tag(domain)
        alike = [known for name, known in self.coverage.items() if domain_tag(name) == wanted]
        return alike[0] if alike and wanted != DEFAULT_DOMAIN else None

    def facts(self) -> dict[str, Any]:
        """Return the attributes as JSON types; what is not known is None."""

        def told(known: Covered | None) -> dict[str, Any] | None:
            if known is None:
                return None
            interval = None if known.interval is None else list(known.interval)
            return {"share": known.share, "interval": interval, "heldout": known.heldout}

        between = self.speedup_interval
        return {
            "repo_id": self.repo_id,
            "commit": self.commit,
            "revision": self.revision,
            "url": self.url,
            "target": self.target,
            "body": self.body,
            "k": self.k,
            "vocab_size": self.vocab_size,
            "share_of_vocabulary": self.share_of_vocabulary,
            "fingerprint": self.fingerprint,
            "parameters": self.parameters,
            "domains": list(self.domains),
            "coverage": {name: told(known) for name, known in self.coverage.items()},
            "overall": told(self.overall),
            "acceptance_length": self.acceptance_length,
            "speedup": self.speedup,
            "speedup_interval": None if between is None else list(between),
            "measured_on": self.measured_on,
            "license": self.license,
        }


def draft_from_facts(
    facts: Mapping[str, Any],
    *,
    repo_id: str,
    commit: str,
    endpoint: str,
    revision: str | None = None,
    tags: Iterable[str] = (),
) -> PublishedDraft:
    """Make a `PublishedDraft` of what `vtrim/coverage.json` says.

    Args:
        facts: what `coverage_metadata.parse` let through.
        repo_id: where they are from.
        commit: the same.
        endpoint: of the Hub.
        revision: the branch, if it is not main.
        tags: of the repository.
    """
    target, draft = facts["target"], facts["draft"]
    coverage, decoding = facts.get("coverage", {}), facts.get("decoding", {})
    speedup = _speedup(decoding, repo_id if revision is None else f"{repo_id}@{revision}")
    by_domain = {name: _covered(part) for name, part in coverage.get("domains", {}).items()}
    overall = _covered(coverage)
    if overall is None and len(by_domain) == 1:
        (overall,) = by_domain.values()
    page = f"{endpoint.rstrip('/')}/{repo_id}"
    told = tuple(str(tag) for tag in tags)
    return PublishedDraft(
        repo_id=repo_id,
        commit=commit,
        revision=revision,
        url=page if revision is None else f"{page}/tree/{quote(revision, safe='')}",
        target=target.get("id"),
        vocab_size=target["vocab_size"],
        tokenizer_hash=target.get("tokenizer_hash"),
        body=draft["body"],
        k=draft["k"],
        share_of_vocabulary=draft["share_of_vocabulary"],
        fingerprint=draft["fingerprint"],
        parameters=draft.get("parameters"),
        domains=tuple(by_domain),
        coverage=MappingProxyType({name: known for name, known in by_domain.items() if known}),
        overall=overall,
        acceptance_length=decoding.get("acceptance_length"),
        speedup=speedup.get("median"),
        speedup_interval=(speedup["low"], speedup["high"])
        if "low" in speedup and "high" in speedup
        else None,
        measured_on=_measured_on(decoding) if decoding else None,
        license=next((tag.partition(":")[2] for tag in told if tag.startswith("license:")), None),
        tags=told,
    )


def order_of_merit(draft: PublishedDraft, domain: str | None) -> tuple[Any, ...]:
    """Return what drafts are sorted by, the best first.

    A draft whose own data has the domain comes before one that is only tagged with it. Then
    coverage in whole per cents counts (of the domain, else of all; one that is not known comes
    last), because smaller differences lie inside the intervals; then the speed-up that was
    measured, on whichever machine; then the smaller vocabulary; then the name. All of it is what
    the publisher says: the order is as good as the people whose drafts are asked for.
    """
    fits = 0 if domain is None else draft.serves(domain)
    known = draft.covered(domain) or draft.overall
    share = -1 if known is None else math.floor(100 * known.share + 0.5)
    return (-fits, -share, -(draft.speedup or 0.0), draft.k, draft.repo_id, draft.revision or "")


def _covered(part: Mapping[str, Any]) -> Covered | None:
    for name in ("heldout", "search"):
        if name in part:
            low_high = part[name].get("interval")
            interval = None if low_high is None else (low_high[0], low_high[1])
            return Covered(part[name]["share"], interval, name == "heldout")
    return None


def _speedup(decoding: Mapping[str, Any], name: str) -> Mapping[str, float]:
    """Return the speed-up that facts tell, nothing for one that nobody can have measured.

    A verification gives so many tokens as the acceptance length says, and takes the target no
    less time than one token does. Prompts differ, so twice that is let pass.
    """
    told: Mapping[str, float] = decoding.get("speedup", {})
    length = decoding.get("acceptance_length")
    if told and length is not None and told["median"] > _MOST_PER_TOKEN * length:
        logger.warning(
            "%s tells of a speed-up of %g with an acceptance length of %g, which cannot be: its "
            "speed-up is taken for unknown",
            name,
            told["median"],
            length,
        )
        return {}
    return told


def _measured_on(decoding: Mapping[str, Any]) -> str:
    machine = decoding["machine"]
    named = machine.get("gpu") or machine.get("cpu") or "an unknown machine"
    threads = f", {machine['threads']} threads" if "threads" in machine else ""
    device = f", {machine['device']}" if "device" in machine else ""
    return f"{named}{device}{threads}, {decoding['prompts']} prompts"
