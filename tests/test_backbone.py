"""examples/backbone.py: a state_dict with torchvision's names in, a frozen backbone and a trained head, and out again.

The network of PyTorch (tests/twins/backbone.py) has the layers and names of torchvision's resnet18, which is wider.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tracegrad as tg
from test_twins import example
from twins import backbone as twin

OURS = example("backbone")


def resnet(width: int = twin.WIDTH, classes: int = 10) -> Any:
    """In inference mode; weights, running statistics and counters as after some training."""
    torch.manual_seed(4)
    net = twin.Net(width, classes).eval()
    for name, buffer in net.named_buffers():
        buffer.copy_(torch.rand(buffer.shape) + 0.5 if name.endswith("var") else torch.randn(buffer.shape) * 0.3)
        if name.endswith("num_batches_tracked"):
            buffer.fill_(7)
    for name, p in net.named_parameters():
        if ".bn" in name or "downsample.1" in name:
            p.data += 0.2 * torch.randn(p.shape)
    return net


def images(n: int) -> Any:
    return np.random.default_rng(2).standard_normal((n, 3, 32, 32)).astype(np.float32)


def test_the_names_of_the_twin_are_torchvisions() -> None:
    """Those of resnet18: its blocks of two convolutions, and a downsampling where the width changes."""
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    block = ["conv1.weight", *[f"bn1.{n}" for n in norm], "conv2.weight", *[f"bn2.{n}" for n in norm]]
    down = ["downsample.0.weight", *[f"downsample.1.{n}" for n in norm]]
    names = ["conv1.weight", *[f"bn1.{n}" for n in norm], "fc.weight", "fc.bias"]
    names += [f"layer{k}.{i}.{n}" for k in range(1, 5) for i in range(2) for n in block]
    names += [f"layer{k}.0.{n}" for k in range(2, 5) for n in down]
    assert len(names) == 122 and sorted(twin.Net().state_dict()) == sorted(names)


def test_outputs_are_pytorchs_and_all_names_match(device_name: str) -> None:
    net, x = resnet(), images(5)
    with tg.compile_forward(
        model=OURS.ResNet(), forward=OURS.ResNet.__call__, inputs={"x": (None, 3, 32, 32)}, device=device_name
    ) as infer:
        report = tg.from_torch(net.state_dict(), infer)
        counters = sum(name.endswith("num_batches_tracked") for name in net.state_dict())
        assert report.complete and len(report.matched) == 122 - counters == 102, report
        assert report.matched["layer2.layers.0.downsample.layers.1.var"] == "layer2.0.downsample.1.running_var"
        got = infer.run(x=x).output
    want = net(torch.from_numpy(x)).detach().numpy()
    assert np.abs(want).max() > 0.1
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_two_steps_of_the_head_are_pytorchs_and_the_rest_stays(device_name: str) -> None:
    net = resnet()
    first = {k: v.clone() for k, v in net.state_dict().items()}
    optimizer, losses = twin.optimizer(net), list[float]()
    with OURS.training(device_name, keep_grads=True) as train:
        assert tg.from_torch(first, train).complete
        for batch in OURS.batches(2):
            optimizer.zero_grad()
            loss = twin.loss(net, torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"]).long())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            np.testing.assert_allclose(train.step(**batch).loss, losses[-1], rtol=1e-5)
        assert sorted(train.download_grads()) == ["fc.W", "fc.b"]  # no other was computed
        back = tg.to_torch(train)
    assert losses[0] != losses[1]
    for name, value in back.items():
        if name.startswith("fc."):
            assert not torch.equal(value, first[name])
            torch.testing.assert_close(value, net.state_dict()[name], rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(value, first[name]), name
    other = twin.Net()
    other.load_state_dict(back, strict=True)
    floats = {k: v for k, v in other.state_dict().items() if v.is_floating_point()}
    assert floats.keys() == back.keys() and all(torch.equal(v, back[k]) for k, v in floats.items())


def test_a_network_for_other_classes_gives_its_backbone() -> None:
    """As torchvision's, for 1000 classes; a new head of 10 stands where its own was."""
    net = resnet(width=4, classes=1000)
    with OURS.training("cpu", width=4) as train:
        with pytest.raises(tg.InputError, match=r"fc\.weight is float32\[1000, 32\]"):
            tg.from_torch(net.state_dict(), train)
        report = tg.from_torch(net.state_dict(), train, rename=OURS.without_head)
        assert report.missing == ("fc.W", "fc.b") and not report.unused and len(report.matched) == 100


def test_the_program_reads_a_file(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "resnet18.pth"
    torch.save(resnet(width=4, classes=1000).state_dict(), path)
    assert 0 <= OURS.main(steps=2, device="cpu", path=str(path)) <= 1
    said = capsys.readouterr().out
    assert "100 matched, 2 missing here, 0 unused" in said and "102 arrays" in said
