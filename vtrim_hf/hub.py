"""`publish`: a draft goes to the Hub as one commit, after everything that can fail was tried.

Name, login, role, licence, card and a load-back in a fresh process come first. Then the repository
is created, and one commit brings all files and removes the weights of an earlier one; a tag comes
last. Whenever it is interrupted, the branch holds the old draft or the whole new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .coverage_metadata import COVERAGE_JSON, make_metadata
from .family_index import FAMILY_JSON, check_holds_no_index
from .hub_account import MAIN, NOT_LISTED, check_free, check_login, look_at
from .hub_arguments import check_publish_arguments, texts
from .hub_card import check_card, existing_card, license_of_source
from .hub_errors import PublishError, our_part
from .hub_evaluation import eval_results_text, write_eval_results
from .hub_folder import build_folder
from .hub_reloading import prove_it_loads
from .hub_scratch import scratch_folder
from .hub_source import check_source, load_source, tokenizer_of
from .hub_upload import Upload, client_bars, is_weights
from .model_card import license_of, render_card
from .training_facts import training_beside

if TYPE_CHECKING:
    from .decode_report import DecodeReport
    from .search_result import SearchResult

__all__ = ["PublishError", "Published", "publish"]


@dataclass(frozen=True)
class Published:
    """What was published; of a dry run, what would be.

    Attributes:
        repo_id: `NAMESPACE/NAME`.
        url: of the branch, or of the pull request.
        commit: the commit that holds the files; None for a dry run.
        revision: the branch; of a pull request, its reference.
        files: names of the draft's files, ascending.
        removed: names of files of an earlier draft that the commit removes.
        tag: name of the tag, if any.
        dry_run: whether nothing was changed.
        steps: what was done, or would be, in order.
        changed: whether there is a new commit. If the branch held all files already there is
            none, and no pull request either.
    """

    repo_id: str
    url: str
    commit: str | None
    revision: str
    files: tuple[str, ...]
    removed: tuple[str, ...] = ()
    tag: str | None = None
    dry_run: bool = False
    steps: tuple[str, ...] = ()
    changed: bool = True


def publish(
    draft: Any,
    repo_id: str,
    *,
    tokenizer: Any = None,
    search: SearchResult | None = None,
    report: DecodeReport | None = None,
    counts: Any = None,
    training: Any = None,
    target_id: str | None = None,
    draft_id: str | None = None,
    datasets: str | Iterable[str] = (),
    eval_results: Sequence[Mapping[str, str]] = (),
    license: str | Mapping[str, str] | None = None,
    language: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    exist_ok: bool = False,
    tag: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    commit_message: str | None = None,
    commit_description: str | None = None,
    max_shard_size: int | str | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> Published:
    """Publish a draft on the Hub, with its card, its facts, and the code that others need.

    Args:
        draft: a `TrimmedDraftForCausalLM`, or a folder that one was saved in.
        repo_id: `NAMESPACE/NAME`.
        tokenizer: the target's, to lie beside the draft; by default that of the folder.
        search: the result that the vocabulary was taken from.
        report: what the draft gained where it was measured.
        counts: the `TokenCounts` that were searched.
        training: the `TrainingReport`, or its file; by default that in the draft's folder.
        target_id: the target's Hub id.
        draft_id: Hub id of the model whose head was cut.
        datasets: Hub ids of the data that was counted.
        eval_results: recorded figures for benchmarks on the Hub, each a mapping with `dataset` (a
            Hub id), `task`, and `figure` (`"speedup"`, `"acceptance_length"`, ...). The Hub shows
            those of main and of pull requests; a branch's go with it, and link to the branch.
        license: of the weights, an identifier of the Hub; for `"other"` a mapping that has
            `license_name` and perhaps `license_link`, too. By default what the published card
            says, or else that of the model that was cut.
        language: codes of languages, for the card.
        tags: more tags, for the card.
        private: whether a new repository is private; None leaves it to the namespace.
        revision: branch to commit to, main by default. One that is not there starts from the
            repository's first commit, without main's files, card and licence. `find_drafts` lists
            a branch only beside a family's index (`publish_family`).
        create_pr: propose the commit as a pull request.
        exist_ok: whether the repository may exist. One that is empty always may.
        tag: name for a tag on the commit.
        token: of the Hub; by default the one that is logged in.
        endpoint: of the Hub, if it is another.
        commit_message: first line of the commit's message.
        commit_description: the rest of it.
        max_shard_size: see `save_pretrained`.
        dry_run: check everything and say what would be done; nothing is changed on the Hub.
        progress: show bars on a terminal.

    Facts that are recorded with the draft (`draft.coverage_metadata`) hold where none is given.

    Returns:
        What was published.

    Raises:
        TypeError: if `draft` is neither a draft nor a folder.
        ValueError: if an argument is wrong, before anything else is done.
        PublishError: if something does not work; it says what was already done, and what to do.

    Example:
        ```python
        published = publish(draft, "me/my-sql-draft", search=result, license="apache-2.0")
        there = TrimmedDraftForCausalLM.from_pretrained("me/my-sql-draft")
        ```
    """
    from huggingface_hub import HfApi

    check_publish_arguments(
        repo_id=repo_id,
        search=search,
        report=report,
        counts=counts,
        target_id=target_id,
        draft_id=draft_id,
        eval_results=eval_results,
        license=license,
        private=private,
        revision=revision,
        create_pr=create_pr,
        exist_ok=exist_ok,
        tag=tag,
        token=token,
        endpoint=endpoint,
        commit_message=commit_message,
        commit_description=commit_description,
        max_shard_size=max_shard_size,
        dry_run=dry_run,
        progress=progress,
    )
    check_source(draft, tokenizer)
    given = {"datasets": datasets, "language": language, "tags": tags}
    named = {name: texts(name, value) for name, value in given.items()}
    api = HfApi(endpoint=endpoint)
    with _Bar(7, progress) as bar, scratch_folder() as made:
        bar.next("logging in")
        found_token = check_login(api, token, repo_id, create_pr=create_pr)
        place = look_at(api, repo_id, revision, found_token)
        check_free(
            place,
            api.endpoint,
            exist_ok=exist_ok,
            create_pr=create_pr,
            private=private,
            tag=tag,
        )
        check_holds_no_index(place)
        bar.next("reading the draft")
        model, source = load_source(draft)
        own_tokenizer = tokenizer_of(model, tokenizer, source)
        with our_part("the draft's facts do not fit"):
            facts = make_metadata(
                model,
                search=search,
                report=report,
                counts=counts,
                target_id=target_id,
                draft_id=draft_id,
                datasets=named["datasets"],
                tokenizer=own_tokenizer,
                training=training or training_beside(source, model.vocabulary.fingerprint),
                recorded=model.coverage_metadata,
            )
            results = eval_results_text(eval_results, facts, repo_id, api.endpoint, place.revision)
        bar.next("writing the card")
        card = existing_card(api, place, found_token, source, made)
        said = license or license_of(card) or license_of_source(api, facts, found_token, str(made))
        if not said:
            new = place.exists and not place.branch_exists
            raise PublishError(
                "the licence of the weights is not known: no card says it, and it is not guessed"
                + (f"; the new branch {place.revision} starts without main's card" if new else ""),
                "pass license=, an identifier of the Hub such as 'apache-2.0': that of the model "
                "whose head was cut, of an EAGLE-3 draft its target's",
            )
        with our_part("the card cannot be written"):
            text = render_card(
                repo_id,
                facts,
                said,
                existing=card,
                language=named["language"] or None,
                tags=named["tags"],
                chat=bool(getattr(own_tokenizer, "chat_template", None)),
                tokenizer=own_tokenizer is not None,
                endpoint=api.endpoint,
                revision=None if revision in (None, MAIN) else revision,
            )
        check_card(api, text, found_token)
        bar.next("saving")
        folder = made / "draft"
        with our_part("the draft cannot be saved"):
            files = build_folder(
                model,
                folder,
                facts=facts,
                card=text,
                tokenizer=own_tokenizer,
                source=source,
                max_shard_size=max_shard_size,
            )
        files = tuple(sorted((*files, *write_eval_results(folder, results))))
        bar.next("loading it back in a fresh process")
        with our_part("the draft does not come back from what would be published"):
            prove_it_loads(model, folder)
        stale = tuple(name for name in place.files if is_weights(name) and name not in files)
        upload = Upload(
            api,
            place,
            found_token,
            private=private,
            create_pr=create_pr,
            message=commit_message or f"Publish a draft of {facts['draft']['k']:,} kept ids",
            description=commit_description,
            tag=tag,
        )
        # Drafts are found by the tags of main, or by the index that lies there.
        known = {FAMILY_JSON, COVERAGE_JSON} & {*place.main_files}
        alone = () if known or place.revision == MAIN or create_pr else (NOT_LISTED,)
        plan = (*upload.plan(files, stale), *alone)
        if dry_run:
            return Published(
                repo_id, upload.url, None, place.revision, files, stale, tag, True, plan, False
            )
        bar.next("uploading")
        with client_bars(progress):
            commit, url, reference = upload.run(folder, files, stale)
        bar.next("done")
        told, changed = (*upload.done, *alone), upload.changed
        return Published(repo_id, url, commit, reference, files, stale, tag, False, told, changed)


class _Bar:
    """One bar over all steps, so that somebody who waits knows for what."""

    def __init__(self, steps: int, shown: bool) -> None:
        from transformers.utils import logging

        self._bar = logging.tqdm(
            total=steps, disable=not shown, bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt}"
        )

    def next(self, what: str) -> None:
        self._bar.set_description(f"publishing: {what}")
        self._bar.update(1)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
