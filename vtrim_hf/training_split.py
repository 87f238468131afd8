"""Which conversations are kept apart from a training, to choose its best checkpoint by.

What is kept apart is what training may not know: prompts, not only answers. So all answers to one
prompt are on one side, in whichever turn of a conversation they stand.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

from .batch_counting import CountRules
from .chat_rows import Conversation

logger = logging.getLogger(__name__)

_LEAST_HELDOUT = 16
_ASK_NOTHING = frozenset({"system", "developer", "assistant"})


def answered_prompts(conversation: Conversation) -> tuple[bytes, ...]:
    """Return the sha256 of each prompt that a conversation answers, of the first turn first.

    A prompt is all that comes before an answer, once somebody has asked something. Conversations
    that share any of their prompts therefore share the first. Of one in which nobody has asked,
    it is what comes before the last answer; of one that answers nothing, or that nothing is said
    before, it is the conversation's own.

    Raises:
        MalformedRow: as `Conversation.digest` does.
    """
    messages, answers = conversation.messages, conversation.assistant_turns
    said = [at for at, message in enumerate(messages) if message.get("content")]
    asked = [at for at in said if messages[at]["role"] not in _ASK_NOTHING]
    answering = [at for at in answers if asked and asked[0] < at]
    answering = answering or [at for at in answers[-1:] if said and said[0] < at]
    if not answering:
        return (conversation.digest(),)
    return tuple(
        Conversation(conversation.shape, messages[:at], conversation.tools).digest()
        for at in answering
    )


def by_prompt(prompts: Mapping[bytes, Sequence[bytes]]) -> dict[bytes, set[bytes]]:
    """Put together the conversations that answer one prompt.

    Args:
        prompts: for the hash of each conversation, those of its prompts, see `answered_prompts`.

    Returns:
        The conversations that share a prompt, by the hash of the one that decides where all of
        them go: whatever answers a prompt alone goes where counting puts it.
    """
    together: dict[bytes, set[bytes]] = defaultdict(set)
    for conversation, of_one in prompts.items():
        together[of_one[0]].add(conversation)
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
        trained: hashes of all prompts that are trained on, see `answered_prompts`.
        judged: of all that are evaluated on.
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
