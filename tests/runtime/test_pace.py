"""How often pages are sent frames of a running answer, and how large the frames are."""

from itertools import pairwise

from conversations.domain.text import dump_json
from conversations.rendering.streaming import BlockStream
from conversations.runtime.drafts import LiveBlock
from conversations.runtime.execution import MAX_INTERVAL_SECONDS, SAMPLE_SECONDS, FrameThrottle


def test_the_frame_interval_grows_only_while_the_processor_is_busy() -> None:
    now = used = 0.0
    pace = FrameThrottle(shortest=0.0, clock=lambda: now, cpu_clock=lambda: used)

    def go_on(share: float) -> float:
        nonlocal now, used
        now, used = now + 2 * SAMPLE_SECONDS, used + 2 * share * SAMPLE_SECONDS
        return pace.interval()

    assert [go_on(0.6) for _ in range(5)] == [0.0] * 5
    busy = [go_on(1.2) for _ in range(20)]
    assert busy[0] > 0
    assert all(one <= other for one, other in pairwise(busy))
    assert busy[-1] == MAX_INTERVAL_SECONDS
    assert go_on(0.75) == MAX_INTERVAL_SECONDS
    idle = [go_on(0.3) for _ in range(20)]
    assert all(one >= other for one, other in pairwise(idle))
    assert idle[-1] == 0.0


def test_a_setting_is_the_minimum_of_the_frame_interval() -> None:
    assert FrameThrottle(shortest=0.04).interval() == 0.04


def test_a_word_adds_few_bytes_even_to_a_long_block() -> None:
    for text in (
        "word and more " * 400,
        "- " + "some item of it " * 300,
        "```py\n" + "x = 1\n" * 900,
    ):
        part = LiveBlock(number=1, kind="text", blocks=BlockStream())
        words = text.split(" ")
        sizes = []
        for word in words:
            part.feed(f"{word} ")
            sizes.append(len(dump_json(part.frame("a" * 36)).encode()))
        assert sum(sizes[:-1]) < 150 * len(words)
