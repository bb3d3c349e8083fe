"""byteps.jax beyond the contract: trees, transformations of functions, optax, what cannot work."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest

import byteps.jax as bps
from byteps.session import Session

from .conftest import Ranks
from .drivers.jax_threads import jax, jnp
from .spy import Spy


def both(function: Any, *arguments: Any) -> list[Any]:
    """What a function returns at once, and compiled."""
    found = [run(*arguments) for run in (function, jax.jit(function))]
    return [np.asarray(value).tolist() for value in found]


def test_trees_keep_their_structure_and_dtypes(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        factor = session.rank + 1
        tree = {"a": [jnp.ones(3, jnp.bfloat16) * factor, None], "b": (jnp.arange(4) * factor, 2.0 * factor)}

        def total(tree: Any) -> Any:
            return bps.push_pull(tree, op=bps.Sum, name="total", session=session)

        constant = jax.jit(lambda: total(tree))
        for found in (total(tree), jax.jit(total)(tree), constant(), constant()):
            assert jax.tree.structure(found) == jax.tree.structure(tree)
            assert found["a"][0].dtype == jnp.bfloat16
            assert found["a"][0].tolist() == [3.0] * 3
            assert found["b"][0].tolist() == [0, 3, 6, 9]
            assert float(found["b"][1]) == 6.0
        assert jax.jit(total)({}) == total({}) == {}

    ranks(2, work)


def test_the_first_leaf_is_the_most_urgent(ranks: Ranks) -> None:
    def work(session: Session) -> list[tuple[str, int]]:
        spy = Spy(session)
        tree = {"a": jnp.ones(2), "b": jnp.ones(3)}
        jax.jit(lambda tree: bps.push_pull(tree, name="x", priority=5, session=session))(tree)
        return spy.submitted

    for seen in ranks(2, work):
        assert sorted(seen) == [("push_pull.x['a']", 5), ("push_pull.x['b']", 4)]


def test_compiled_functions_run_again_and_loop(ranks: Ranks) -> None:
    def work(session: Session) -> list[float]:
        def doubled(value: Any, _: Any) -> tuple[Any, None]:
            return bps.push_pull(value, op=bps.Sum, session=session), None

        run = jax.jit(lambda value: jax.lax.scan(doubled, value, None, length=3)[0])
        slope = jax.jit(jax.grad(lambda value: run(value)))
        return [float(call(1.0)) for call in (run, run, slope, slope)]

    assert ranks(2, work) == [[8.0] * 4] * 2


def test_a_batch_travels_as_one(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        value = jnp.ones((3, 2)) * (session.rank + 1)

        def mean(value: Any) -> Any:
            return bps.push_pull(value, session=session)

        for found in both(jax.vmap(mean), value):
            assert found == [[1.5, 1.5]] * 3
        for found in both(jax.jacrev(mean), value[0]):
            assert found == [[1.0, 0.0], [0.0, 1.0]]

    ranks(2, work)


def test_gradients_of_gradients_of_copies_and_of_whole_numbers(ranks: Ranks) -> None:
    def work(session: Session) -> list[list[Any]]:
        def cubed(value: Any) -> Any:
            return bps.push_pull(value**3, op=bps.Sum, session=session)

        def copied(value: Any) -> Any:
            return bps.broadcast(value, 1, session=session) * (2.0 + session.rank)

        def mixed(value: Any) -> Any:
            found = bps.push_pull({"a": value, "n": jnp.arange(3)}, session=session)
            return found["a"] * found["n"][2]

        first, second = jax.grad(cubed), jax.grad(jax.grad(cubed))
        return [both(run, 2.0) for run in (first, second, jax.grad(copied), jax.grad(mixed))]

    shared: Any = [[24.0] * 2, [24.0] * 2]
    assert ranks(2, work) == [[*shared, [0.0] * 2, [2.0] * 2], [*shared, [2.5] * 2, [2.0] * 2]]


def test_parameters_become_the_roots_and_stay_what_they_are(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        rank = session.rank
        optimizer = optax.adam(0.1)
        params = {"w": jnp.full((2, 2), float(rank), jnp.bfloat16), "host": np.full(3, rank), "step": rank}
        state = optimizer.init({"w": params["w"]})
        found, _ = bps.broadcast_parameters((params, state), 1, session=session)
        assert isinstance(found["w"], jax.Array)
        assert isinstance(found["host"], np.ndarray)
        assert (found["w"].dtype, found["w"].tolist()) == (jnp.bfloat16, [[1.0, 1.0]] * 2)
        assert (found["host"].tolist(), found["step"]) == ([1, 1, 1], 1)
        assert float(params["w"][0, 0]) == rank
        assert bps.broadcast_parameters({}, session=session) == {}

    ranks(2, work)


def test_optax_chains_train_as_one_process(ranks: Ranks) -> None:
    targets = np.random.default_rng(3).normal(size=(2, 6)).astype(np.float32)

    def train(session: Session | None, targets: Any) -> Any:
        chain = [optax.clip_by_global_norm(0.5), optax.adam(0.05)]
        reduced = [] if session is None else [bps.push_pull_gradients(session=session)]
        optimizer: Any = optax.chain(*reduced, *chain)

        def loss(params: Any) -> Any:
            return jnp.mean(jnp.square(params["w"] * params["scale"] - targets))

        @jax.jit
        def step(params: Any, state: Any) -> Any:
            updates, state = optimizer.update(jax.grad(loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        params = {"w": jnp.zeros(6, jnp.float32), "scale": jnp.float32(1.0)}
        state = optimizer.init(params)
        for _ in range(30):
            params, state = step(params, state)
        return params

    wanted = train(None, targets)
    for found in ranks(2, lambda session: train(session, targets[session.rank])):
        jax.tree.map(
            lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5), found, wanted
        )


def test_two_models_with_the_same_paths_do_not_mix(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        one, other = (bps.push_pull_gradients(op=bps.Sum, session=session) for _ in range(2))
        for _ in range(2):
            small, _ = one.update({"w": jnp.ones(2)}, ())
            large, _ = other.update({"w": jnp.ones(5)}, ())
            assert (small["w"].tolist(), large["w"].tolist()) == ([2.0] * 2, [2.0] * 5)

    ranks(2, work)


@pytest.mark.parametrize("names", [["l0", "l1", "l2"], ["l2", "l1", "l0"]], ids=["in order", "not in order"])
def test_gradients_travel_while_the_backward_pass_runs(ranks: Ranks, names: list[str]) -> None:
    def work(session: Session) -> list[str]:
        events: list[str] = []
        Spy(session, lambda name: events.append(f"start {name[-4:-2]}"))
        reduced = bps.push_pull_gradients(session=session)

        def loss(params: Any) -> Any:
            value = jnp.ones(4)
            for name in names:
                value = _layer(events, name, params[name] * value)
            return jnp.sum(value)

        params = {name: jnp.ones(4) for name in names}
        jax.block_until_ready(jax.jit(lambda params: reduced.update(jax.grad(loss)(params), ()))(params))
        return events

    for events in ranks(2, work):
        assert events.index(f"start {names[2]}") < events.index(f"backward {names[0]}"), events
        assert [event for event in events if "start" in event] == [f"start {name}" for name in names[::-1]]


def _layer(events: list[str], name: str, value: Any) -> Any:
    """The value; its backward pass is noted when it runs."""

    def note(upstream: Any) -> Any:
        events.append(f"backward {name}")
        return np.asarray(upstream)

    @jax.custom_vjp
    def layer(value: Any) -> Any:
        return value

    def backward(_: None, upstream: Any) -> tuple[Any]:
        return (jax.pure_callback(note, jax.ShapeDtypeStruct(upstream.shape, upstream.dtype), upstream),)

    layer.defvjp(lambda value: (value, None), backward)
    return layer(value)


def test_groups_of_one_name_keep_their_order(ranks: Ranks) -> None:
    def work(session: Session) -> list[float]:
        def total(value: Any) -> Any:
            return bps.push_pull(value, op=bps.Sum, name="total", session=session)

        @jax.jit
        def run(value: Any) -> Any:
            slow = jax.lax.fori_loop(0, 20000 * (1 - session.rank), lambda _, one: jnp.sqrt(one * one), value)
            return total(slow), total(10 * value)  # of which the second is there first on rank 0

        found = [run(1.0), run(2.0)]
        return [float(value) for pair in found for value in pair]

    assert ranks(2, work) == [[2.0, 20.0, 4.0, 40.0]] * 2


def test_what_cannot_work_says_what_to_call(ranks: Ranks) -> None:
    kept: list[Any] = []
    jax.jit(lambda value: kept.append(value))(1.0)

    def work(session: Session) -> None:
        def largest(value: Any) -> Any:
            return bps.push_pull(value, op=bps.Max, session=session)

        for run in (jax.grad(largest), jax.jit(jax.grad(largest))):
            with pytest.raises(ValueError, match=r"Max has no gradient.*jax\.lax\.stop_gradient"):
                run(1.0)
        with pytest.raises(jax.errors.UnexpectedTracerError, match=r"'kept': .*jax\.checking_leaks"):
            bps.push_pull(kept[0], name="kept", session=session)
        mesh = jax.sharding.Mesh(jax.devices()[:1], "devices")
        spread = jax.sharding.PartitionSpec("devices")
        mapped = jax.shard_map(largest, mesh=mesh, in_specs=spread, out_specs=spread)
        with pytest.raises(RuntimeError, match=r"jax\.shard_map.*jax\.lax\.psum"):
            jax.jit(mapped)(jnp.ones(2))
        for run in (jax.jit, jax.grad):
            with pytest.raises(RuntimeError, match=r"outside of the function that jax\.jit"):
                run(lambda value: bps.broadcast_parameters(value, session=session))(1.0)

    ranks(1, work)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": bps.Max}, "must be Average or Sum"),
        ({"op": bps.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
    ],
)
def test_options_that_cannot_work(ranks: Ranks, options: dict[str, Any], message: str) -> None:
    def work(session: Session) -> None:
        with pytest.raises(ValueError, match=message):
            bps.push_pull_gradients(session=session, **options)

    ranks(1, work)


def test_a_function_compiled_for_an_earlier_session() -> None:
    run = jax.jit(lambda value: bps.push_pull(value, name="value"))
    bps.init()
    try:
        assert float(run(1.0)) == 1.0
    finally:
        bps.shutdown()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"init\(\) call jax\.clear_caches"):
        run(1.0)
    jax.clear_caches()
    bps.init()
    try:
        assert float(run(2.0)) == 2.0
    finally:
        bps.shutdown()
