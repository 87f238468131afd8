"""Which conversations are kept apart from a training, to choose its best checkpoint by.

What is kept apart is what training may not know: prompts, not only answers. So all answers to one
prompt are on one side.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Set

from .batch_counting import CountRules
from .chat_rows import Conversation

logger = logging.getLogger(__name__)

_LEAST_HELDOUT = 16


def prompt_digest(conversation: Conversation) -> bytes:
    """Return the sha256 of all that comes before a conversation's last answer.

    Of one that answers nothing, or that nothing is said before, it is the conversation's own.

    Raises:
        MalformedRow: as `Conversation.digest` does.
    """
    answers = conversation.assistant_turns
    before = conversation.messages[: answers[-1]] if answers else ()
    if not any(message.get("content") for message in before):
        return conversation.digest()
    return Conversation(conversation.shape, before, conversation.tools).digest()


def by_prompt(prompts: Mapping[bytes, bytes]) -> dict[bytes, set[bytes]]:
    """Put together the conversations that answer one prompt.

    Args:
        prompts: for the hash of each conversation, that of its prompt.

    Returns:
        The conversations of each prompt, by the hash of the one that decides where all of them
        go: whatever answers a prompt alone goes where counting puts it.
    """
    together: dict[bytes, set[bytes]] = defaultdict(set)
    for conversation, prompt in prompts.items():
        together[prompt].add(conversation)
    # By the part of a hash that no share goes by: prompts with more answers are held out no more
    # often than others.
    return {min(group, key=lambda key: key[16:]): group for group in together.values()}


def held_out(conversations: set[bytes], share: float) -> set[bytes]:
    """Choose conversations to choose the best checkpoint by.

    Args:
        conversations: their hashes; one a prompt, see `by_prompt`.
        share: of them, as counting holds out; of few, at least one (and up to 16).
    """
    if not share:
        return set()
    rules = CountRules(vocab_size=1, heldout=share, blocks=1)
    chosen = {digest for digest in conversations if rules.place(digest)}
    # Those that come next when the share grows: what is held out stays so.
    least = max(1, min(_LEAST_HELDOUT, len(conversations) // 10))
    return chosen if len(chosen) >= least else set(sorted(conversations)[:least])


def warn_of_shared_prompts(trained: Set[bytes], judged: Set[bytes]) -> None:
    """Warn where the data that chooses the best checkpoint has prompts that are trained on.

    Args:
        trained: hashes of the prompts that are trained on, see `prompt_digest`.
        judged: of those that are evaluated on.
    """
    shared = len(trained & judged)
    if shared:
        logger.warning(
            "%d of %d prompts of the evaluation data are trained on, too: the checkpoint that is "
            "chosen may be the one that knows them by heart; take them out of either, or give no "
            "data for evaluation, and some that is not trained on is held out",
            shared,
            len(judged),
        )
