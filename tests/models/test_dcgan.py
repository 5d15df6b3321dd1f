import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bow.errors import SettingError
from bow.models import DCGAN, adversarial_loss
from bow.models.dcgan import discriminator_loss, generator_loss


def _batch(model: DCGAN, samples: int = 8) -> tuple[Tensor, Tensor]:
    images = torch.rand(samples, 1, 16, 16, dtype=torch.float64) * 2 - 1
    return images, model.noise(images)


def _model() -> DCGAN:
    return DCGAN(size=16, width=4, latent=8).double()


def test_one_backward_pass_equals_the_usual_loop_of_two_optimizers() -> None:
    model = _model()
    usual = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    of_generator = torch.optim.SGD(usual.generator.parameters(), lr=0.5, momentum=0.9)
    of_discriminator = torch.optim.SGD(usual.discriminator.parameters(), lr=0.5, momentum=0.9)
    ones = torch.ones(8, dtype=torch.float64)
    for _ in range(3):
        images, noise = _batch(model)
        optimizer.zero_grad()
        adversarial_loss(model((images, noise))).backward()
        optimizer.step()

        generated = usual.generator(noise)
        of_discriminator.zero_grad()
        F.binary_cross_entropy_with_logits(usual.discriminator(images), ones).backward()
        F.binary_cross_entropy_with_logits(usual.discriminator(generated.detach()), 0 * ones).backward()
        wanted = [parameter.grad.clone() for parameter in usual.discriminator.parameters()]
        of_generator.zero_grad()
        F.binary_cross_entropy_with_logits(usual.discriminator(generated), ones).backward()
        for parameter, gradient in zip(usual.discriminator.parameters(), wanted, strict=True):
            parameter.grad = gradient  # without what the generator's loss left there
        for name, parameter in usual.named_parameters():
            torch.testing.assert_close(model.get_parameter(name).grad, parameter.grad, rtol=0, atol=1e-12)
        of_discriminator.step()
        of_generator.step()
    for name, value in usual.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=1e-11)


def test_each_loss_moves_its_own_network_only() -> None:
    model = _model()
    for loss, own, other in (
        (discriminator_loss, model.discriminator, model.generator),
        (generator_loss, model.generator, model.discriminator),
    ):
        model.zero_grad()
        loss(model(_batch(model))).backward()
        assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in own.parameters())
        assert all(parameter.grad is None for parameter in other.parameters())


@pytest.mark.parametrize("part", ["generator", "discriminator"])
def test_a_network_lowers_its_loss_while_the_other_stands_still(part: str) -> None:
    torch.manual_seed(0)
    model, own = _model(), {"generator": generator_loss, "discriminator": discriminator_loss}[part]
    batch = _batch(model)
    optimizer = torch.optim.Adam(model.get_submodule(part).parameters(), lr=2e-3)
    losses = []
    for _ in range(30):
        model.zero_grad()
        verdicts = model(batch)
        adversarial_loss(verdicts).backward()
        optimizer.step()
        losses.append(own(verdicts).item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(("size", "start"), [(8, 4), (16, 4), (20, 5), (28, 7), (64, 4)])
def test_images_are_generated_in_the_size_of_the_real_ones(size: int, start: int) -> None:
    model = DCGAN(channels=3, size=size, width=2, latent=5)
    images = model.generator(torch.randn(2, 5))
    assert images.shape == (2, 3, size, size)
    assert images.abs().max() <= 1
    assert model.generator.project.out_features % start**2 == 0
    assert model.discriminator(images).shape == (2,)


def test_noise_is_drawn_where_none_is_given() -> None:
    model, images = _model(), torch.zeros(4, 1, 16, 16, dtype=torch.float64)
    torch.manual_seed(0)
    drawn = model(images)
    torch.manual_seed(0)
    given = model((images, model.noise(images)))
    torch.testing.assert_close(drawn.deceived, given.deceived)
    assert model.noise(images).dtype == torch.float64


@pytest.mark.parametrize("size", [6, 7, 15])
def test_sizes_that_cannot_be_halved_are_refused(size: int) -> None:
    with pytest.raises(SettingError, match=f"even and at least 8 pixels, got {size}"):
        DCGAN(size=size)
