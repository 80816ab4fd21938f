"""The speed of a server through a run: changes that its load explains, and others."""

import random

from msgspec.structs import replace

from cm4vllm.records.metrics import MetricsSample, speed_of


def samples(
    seconds, step_ms, *, running=lambda at: 100.0, slow=lambda at: 1.0, prompts=lambda at: 1.0, every_s=2.0, seed=1
):
    """The samples of a server whose steps take step_ms(running) * slow(at), give or take 5 %."""
    noise = random.Random(seed)
    tokens, computed, taken, at = 0.0, 0.0, [], 0.0
    while at <= seconds:
        now = round(running(at))
        taken.append(
            MetricsSample(
                at_s=at,
                running=now,
                waiting=0,
                kv_cache_usage=0.5,
                preemptions=0,
                prefix_cache_hits=0,
                cached_prompt_tokens=0,
                prompt_tokens=round(computed),
                generation_tokens=round(tokens),
            )
        )
        following = (now + round(running(at + every_s))) / 2
        made = every_s * 1000 * following / (step_ms(following) * slow(at) * noise.uniform(0.95, 1.05))
        tokens, computed = tokens + made, computed + made * prompts(at)
        at += every_s
    return taken


def by_line(running):
    return 4 + 0.1 * running


def changing(at):
    """A load that goes up and down between 60 and 250 requests."""
    return 60 + 190 * abs((at / 37) % 2 - 1)


def test_a_load_that_changes_is_no_change_of_speed():
    speed = speed_of(samples(600, by_line, running=changing))
    assert not speed.slowed
    assert speed.words == ""
    assert speed.parts == 20
    assert 0.96 < speed.slowest <= 1
    for running in (60, 150, 250):
        assert abs(speed.step_ms(running) / by_line(running) - 1) < 0.07


def test_a_server_that_is_slower_for_some_seconds_is_told_with_the_time():
    speed = speed_of(samples(345, by_line, running=changing, slow=lambda at: 1.5 if at >= 333 else 1.0))
    assert speed.slowed
    assert (speed.slowest_from_s, speed.slowest_to_s) == (326.8, 344.0)
    assert speed.words == (
        f"from 327 to 344 s the server generated {100 * (1 - speed.slowest):.0f} % fewer tokens/s than in most of the "
        "run with as many requests"
    )
    assert 0.66 < speed.slowest < 0.85


def test_a_batch_that_is_filled_with_prompts_is_no_loss_of_speed():
    def first(much):
        return lambda at: much if at < 60 else 1.0

    assert speed_of(samples(600, by_line, slow=first(1.5))).slowed
    filled = speed_of(samples(600, by_line, slow=first(1.5), prompts=first(2.0)))
    assert not filled.slowed
    assert filled.parts == 18


def test_a_constant_load_has_a_mean_time_of_a_step_and_no_line():
    speed = speed_of(samples(200, by_line))
    assert speed.per_request_ms == 0
    assert abs(speed.base_ms / by_line(100) - 1) < 0.03
    assert (speed.low, speed.high) == (100, 100)
    assert not speed.slowed


def test_a_server_whose_speed_always_changes_has_no_slow_part():
    noise = random.Random(5)
    speeds = [noise.uniform(1.0, 1.6) for _ in range(100)]
    assert not speed_of(samples(600, by_line, slow=lambda at: speeds[int(at // 30)])).slowed


def test_few_parts_do_not_tell_what_is_typical():
    speed = speed_of(samples(38, by_line, slow=lambda at: 2.0 if at >= 30 else 1.0))
    assert speed.parts == 4
    assert speed.slowest < 0.6
    assert not speed.slowed


def test_a_server_that_is_hardly_used_has_no_speed():
    assert speed_of([]) is None
    assert speed_of(samples(10, by_line)) is None
    assert speed_of(samples(600, by_line, running=lambda at: 0)) is None
    assert speed_of([replace(sample, generation_tokens=0) for sample in samples(100, by_line)]) is None
