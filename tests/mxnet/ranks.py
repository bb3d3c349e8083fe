"""What a rank of a test job does with MXNet, in a process of its own: ``python ranks.py PROGRAM``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import mxnet as mx

import byteps.mxnet as bps


def say(text: str) -> None:
    """A line of output, at once: tests wait for it."""
    os.write(1, f"{text}\n".encode())


def make_net() -> Any:
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(7, activation="tanh"), mx.gluon.nn.Dense(3))
    net.initialize()
    net.hybridize()
    return net


def step(net: Any, trainer: Any, inputs: Any) -> None:
    with mx.autograd.record():
        loss = net(inputs).square().mean()
    loss.backward()
    trainer.step(1)


def parameters(net: Any) -> list[list[float]]:
    return [
        parameter.data().asnumpy().round(5).ravel().tolist() for parameter in net.collect_params().values()
    ]


def train() -> None:
    """Train until something ends it."""
    net = make_net()
    trainer = bps.DistributedTrainer(net.collect_params(), "adam")
    number = 0
    while True:
        step(net, trainer, mx.nd.random.uniform(shape=(4, 5)))
        mx.nd.waitall()
        number += 1
        if number == 3:
            say("ready")


def synchronous() -> None:
    """Train with the engine that does everything at once."""
    net = make_net()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd")
    for number in range(3):
        step(net, trainer, mx.nd.full((4, 5), bps.rank() + number))
    assert len(set(map(str, bps.allgather_object(parameters(net))))) == 1


def fork() -> None:
    """Fork while gradients are computed and sent, as a DataLoader does at the start of an epoch."""
    net = make_net()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd")
    for number in range(20):
        step(net, trainer, mx.nd.full((4, 5), bps.rank() + number))
        child = os.fork()
        if not child:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert len(set(map(str, bps.allgather_object(parameters(net))))) == 1


def store() -> None:
    """Gluon's own trainer over our store, by its name."""
    net = make_net()
    bps.broadcast_parameters(net.collect_params())
    rate = {"learning_rate": 0.1}
    trainer = mx.gluon.Trainer(
        net.collect_params(), "sgd", rate, kvstore="dist_byteps", update_on_kvstore=False
    )
    for number in range(3):
        step(net, trainer, mx.nd.full((4, 5), bps.rank() + number))
    assert (trainer._kvstore.rank, trainer._kvstore.num_workers) == (bps.rank(), bps.size())
    assert len(set(map(str, bps.allgather_object(parameters(net))))) == 1


def horovod() -> None:
    """A loop in the style of Horovod's examples, with the names of its module."""
    hvd: Any = importlib.import_module("horovod.mxnet")
    hvd.init()
    net = make_net()
    optimizer = mx.optimizer.create("sgd", learning_rate=0.1 * hvd.size(), rescale_grad=0.5)
    net(mx.nd.ones((1, 5)))
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), optimizer)
    for number in range(3):
        step(net, trainer, mx.nd.full((4, 5), hvd.rank() + number))
    total = hvd.allreduce(mx.nd.array([hvd.rank() + 1.0]), average=False, name="total")
    assert total.asscalar() == sum(range(1, hvd.size() + 1))
    assert len(set(map(str, hvd.allgather_object(parameters(net))))) == 1


if __name__ == "__main__":
    bps.init()
    mx.random.seed(bps.rank())
    globals()[sys.argv[1]]()
    say("done")
    bps.shutdown()
