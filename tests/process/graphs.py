"""Graphs of TensorFlow as one rank of a job runs them. Run by test_tensorflow."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

import byteps.tensorflow as bps
from byteps.adapters.current import current

LAYERS, TENSORS, LAYER_S = 4, 12, 0.1


def one_thread() -> None:
    """Many groups and single tensors in one function, with one thread to run them."""
    tf.config.threading.set_inter_op_parallelism_threads(1)
    variables = [tf.Variable(tf.ones(1000) * (bps.rank() + 1.0), name=f"v{n}") for n in range(TENSORS)]

    @tf.function
    def step(ordered: Any) -> Any:
        total = tf.constant(0.0)
        for group in (variables[::2], variables[1::2]):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(v * v) * ordered[n] for n, v in enumerate(group)])
            gradients = bps.DistributedGradientTape(tape).gradient(loss, group)
            total += tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])
        return (
            total + bps.push_pull(total * 0 + bps.rank(), op=bps.Sum) + bps.push_pull(ordered[0], op=bps.Sum)
        )

    for _ in range(5):
        found = float(step(tf.ones(TENSORS)))
        assert found == TENSORS * 1000 * 3 + 1 + 2, found


def overlap() -> None:
    """Layers whose backward pass takes time: each gradient is sent while the next one is computed."""
    events: list[str] = []
    session = current()
    submit = session.submit

    def noting(spec: Any, *arguments: Any, **options: Any) -> Any:
        events.append(f"sent {spec.name}")
        return submit(spec, *arguments, **options)

    session.submit = noting  # type: ignore[method-assign]

    def layer(number: int, x: Any, weight: Any) -> Any:
        def compute(gradient: Any) -> Any:
            time.sleep(LAYER_S)  # workload
            events.append(f"computed {number}")
            return gradient

        @tf.custom_gradient
        def run(x: Any, weight: Any) -> Any:
            def backward(upstream: Any) -> Any:
                upstream = tf.numpy_function(compute, [upstream], tf.float32, stateful=False)
                upstream.set_shape(x.shape)
                return upstream, upstream

            return x + weight, backward

        return run(x, tf.convert_to_tensor(weight))

    weights = [tf.Variable(tf.ones(8), name=f"w{number}") for number in range(LAYERS)]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            for number, weight in enumerate(weights):
                x = layer(number, x, weight)
            loss = tf.reduce_sum(x * x)  # a constant gradient would be computed while the graph is optimised
        return bps.DistributedGradientTape(tape).gradient(loss, weights)

    for gradient in step(tf.ones(8)):
        assert np.array_equal(gradient, np.full(8, 2.0 * (1 + LAYERS)))
    order = [event for number in reversed(range(LAYERS)) for event in (f"computed {number}", f"w{number}")]
    found = [event.removeprefix("sent gradient.").removesuffix(":0") for event in events]
    assert found.index(f"w{LAYERS - 1}") < found.index("computed 0"), found
    assert [event for event in found if event.startswith("w")] == order[1::2], found


if __name__ == "__main__":
    bps.init()
    {"one_thread": one_thread, "overlap": overlap}[sys.argv[1]]()
    bps.shutdown()
