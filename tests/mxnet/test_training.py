"""Training with byteps.mxnet: what the engine waits for, what is equal to one process, what is refused."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import byteps.mxnet as bps
from byteps.adapters.process_sets import ProcessSet
from byteps.errors import BytePSError
from byteps.mxnet.engine import Completion, Operation
from byteps.session import Session
from tests.adapters.conftest import Ranks
from tests.adapters.drivers.interface import FEATURES, LEARNING_RATE, batch, joined
from tests.adapters.drivers.mxnet_driver import array_of, network

STEPS = 30
WAIT_S = 20.0


def loss_of(net: Any, inputs: Any, targets: Any) -> Any:
    with mx.autograd.record():
        loss = mx.nd.square(net(array_of(inputs)) - array_of(targets)).mean()
    loss.backward()
    return loss


def values(net: Any) -> list[Any]:
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def train(net: Any, trainer: Any, rank: int | None) -> list[Any]:
    for step in range(STEPS):
        loss_of(net, *(joined(2, step) if rank is None else batch(rank, step)))
        trainer.step(1)
    return values(net)


def assert_as_alone(
    ranks: Ranks, make: Callable[[Any, Session], Any], optimizer: str, **settings: Any
) -> None:
    """Two ranks train to what one process does."""
    net = network()
    alone = train(net, mx.gluon.Trainer(net.collect_params(), optimizer, settings), None)

    def work(session: Session) -> list[Any]:
        net = network()
        return train(net, make(net.collect_params(), session), session.rank)

    for found in ranks(2, work):
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_wrapped_optimizer_trains_as_one_process(ranks: Ranks) -> None:
    def make(parameters: Any, session: Session) -> Any:
        plain = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9)  # updates several parameters at once
        optimizer = bps.DistributedOptimizer(plain, session=session)
        assert isinstance(optimizer, mx.optimizer.SGD)
        assert type(pickle.loads(pickle.dumps(optimizer))) is mx.optimizer.SGD
        return mx.gluon.Trainer(parameters, optimizer, kvstore=None)

    assert_as_alone(ranks, make, "sgd", learning_rate=0.1, momentum=0.9)


def test_the_store_trains_as_one_process(ranks: Ranks) -> None:
    def make(parameters: Any, session: Session) -> Any:
        settings = {"learning_rate": 0.01, "rescale_grad": 0.5}
        store = bps.KVStore(session)
        return mx.gluon.Trainer(parameters, "adam", settings, kvstore=store, update_on_kvstore=False)

    assert_as_alone(ranks, make, "adam", learning_rate=0.01)


def test_the_store_adds_over_devices_and_ranks(ranks: Ranks) -> None:
    devices = [mx.cpu(0), mx.cpu(1)]

    def work(session: Session) -> None:
        store = bps.KVStore(session)
        given = [mx.nd.full((3,), 1 + session.rank + place, device) for place, device in enumerate(devices)]
        found = [mx.nd.zeros((3,), device) for device in devices]
        store.pushpull("x", given, found)
        store.pushpull("x", given, priority=3)
        for array in (*found, *given):
            assert array.asnumpy().tolist() == [8.0] * 3
        store.broadcast(0, mx.nd.full((3,), 5 + session.rank), found)
        assert [array.asnumpy().tolist() for array in found] == [[5.0] * 3] * 2

    ranks(2, work)


def test_the_next_forward_pass_begins_while_a_gradient_is_on_its_way(ranks: Ranks) -> None:
    begun = threading.Event()

    def work(session: Session) -> list[Any]:
        net = network()
        settings = {"learning_rate": LEARNING_RATE}
        trainer = bps.DistributedTrainer(net.collect_params(), "adam", settings, session=session)
        last = net[1].weight
        loss_of(net, *batch(session.rank, 0))
        before = last.data().asnumpy()
        held: list[Completion] = []
        if session.rank == 1:  # its gradient of the last layer is computed for a long time yet
            Operation(held.append, lambda: None).push([last.grad()])
        trainer.step(1)
        inputs = array_of(batch(session.rank, 1)[0])
        net[0](inputs).wait_to_read()  # of updated weights, on both ranks
        if session.rank == 1:
            assert begun.wait(WAIT_S)
            held[0]()
        else:
            begun.set()
        after = net[1].weight.data().asnumpy()
        assert not np.allclose(before, after)
        return values(net)

    one, other = ranks(2, work)
    for left, right in zip(one, other, strict=True):
        assert np.array_equal(left, right)


def test_deferred_parameters_become_the_roots_when_they_are_initialised(ranks: Ranks) -> None:
    def work(session: Session) -> list[Any]:
        net = mx.gluon.nn.HybridSequential(prefix="same_")
        with net.name_scope():
            net.add(mx.gluon.nn.Dense(3, in_units=FEATURES), mx.gluon.nn.Dense(2))
        net.initialize(mx.init.Constant(session.rank + 1))
        bps.broadcast_parameters(net.collect_params(), 1, session=session)
        trainer = bps.DistributedTrainer(net.collect_params(), "sgd", root_rank=1, session=session)
        with pytest.raises(mx.gluon.parameter.DeferredInitializationError):
            trainer.step(1)
        net(mx.nd.ones((1, FEATURES)))
        return values(net)

    for found in ranks(2, work):
        assert [float(weights.max()) for weights in found[::2]] == [2.0, 2.0]


def test_rounds_of_one_name_follow_each_other(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        arrays = [mx.nd.full((4,), session.rank + number) for number in range(10)]
        found = [bps.push_pull(array, name="x", op=bps.Sum, session=session) for array in arrays]
        assert [float(value[0].asscalar()) for value in found] == [2.0 * n + 1 for n in range(10)]
        both = bps.grouped_allreduce(arrays[:2], name="group", op=bps.Max, session=session)
        assert [float(value[0].asscalar()) for value in both] == [1.0, 2.0]
        bps.byteps_push_pull(arrays[0], name="old", is_average=False, session=session)
        assert bps.grouped_allreduce_(arrays[:1], session=session)[0] is arrays[0]
        assert arrays[0].asnumpy().tolist() == [1.0] * 4
        assert bps.broadcast_(arrays[1], 1, session=session).asnumpy().tolist() == [2.0] * 4

    ranks(2, work)


def test_arrays_in_an_order_of_onednn(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        layer = mx.gluon.nn.Conv2D(16, 3, in_channels=16)
        layer.initialize()
        found = layer(layer(mx.nd.ones((2, 16, 8, 8))))
        sent = bps.push_pull(found, session=session)
        assert np.array_equal(sent.asnumpy(), found.asnumpy())
        bps.broadcast_parameters(layer.collect_params(), session=session)  # used in a prediction
        assert np.array_equal(layer(layer(mx.nd.ones((2, 16, 8, 8)))).asnumpy(), found.asnumpy())
        again = layer(layer(mx.nd.ones((2, 16, 8, 8))))
        with pytest.raises(BytePSError, match=r"send array\.copy"):
            bps.allreduce_(again, session=session).wait_to_read()

    ranks(1, work)


def test_a_broadcast_has_a_gradient(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        array = mx.nd.ones((2,))
        array.attach_grad()
        with mx.autograd.record():
            found = bps.broadcast(array, 0, session=session) * (session.rank + 1)
        found.backward()
        assert array.grad.asnumpy().tolist() == [1.5 if session.rank == 0 else 0.0] * 2

    ranks(2, work)


def test_what_cannot_work_is_refused(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        net = network()
        wrapped = bps.DistributedOptimizer(mx.optimizer.SGD(), session=session)
        with pytest.raises(ValueError, match="wrap each optimizer once"):
            bps.DistributedOptimizer(wrapped, session=session)
        with pytest.raises(ValueError, match="process_set="):
            bps.DistributedOptimizer(mx.optimizer.SGD(), process_set=ProcessSet([0]), session=session)
        with pytest.raises(TypeError, match="Optimizer"):
            bps.DistributedOptimizer("sgd", session=session)
        with pytest.warns(UserWarning, match="plain optimizer"):
            bps.DistributedTrainer(net.collect_params(), wrapped, session=session)
        with pytest.raises(ValueError, match="onebit"):
            bps.DistributedTrainer(
                net.collect_params(), "sgd", compression_params={"onebit": True}, session=session
            )
        fresh = mx.gluon.nn.Dense(3, in_units=2)
        with pytest.raises(ValueError, match=r"net\.initialize"):
            bps.broadcast_parameters(fresh.collect_params(), session=session)
        with pytest.raises(ValueError, match="collect_params"):
            bps.broadcast_parameters([net[0].weight], session=session)
        with pytest.raises(ValueError, match="compression"):
            bps.byteps_declare_tensor("x", byteps_compressor_type="onebit")
        with pytest.raises(ValueError, match="update_on_kvstore=False"):
            bps.KVStore(session).set_optimizer(None)

    ranks(1, work)


def test_sparse_gradients_are_refused(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        layer = mx.gluon.nn.Embedding(5, 2, sparse_grad=True)
        layer.initialize()
        trainer = bps.DistributedTrainer(layer.collect_params(), "sgd", session=session)
        with mx.autograd.record():
            loss = layer(mx.nd.array([1, 2])).sum()
        loss.backward()
        with pytest.raises(ValueError, match="sparse_grad=False"):
            trainer.step(1)
        session.barrier()

    ranks(2, work)


def test_one_process_for_each_device(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        net = mx.gluon.nn.Dense(2, in_units=2)
        net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
        with pytest.raises(ValueError, match="2 devices: start one process"):
            bps.DistributedTrainer(net.collect_params(), "sgd", session=session)

    ranks(1, work)
