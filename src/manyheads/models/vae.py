"""A small variational autoencoder for images."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class VAE(nn.Module):
    """Two strided convolutions to a latent vector, and back (Kingma and Welling, ICLR 2014).

    As FedFed's authors have it, with batch normalisation and residual blocks.

    Args:
        image: channels, height, width; sides that are no multiples of 4 are padded inside.
        channels: of the innermost images, even.
        latent: the length of the latent vector.
    """

    def __init__(self, image: tuple[int, int, int], channels: int, latent: int) -> None:
        super().__init__()
        colours, height, width = image
        self.margins = (0, -width % 4, 0, -height % 4)
        self.inner = (channels, -(-height // 4), -(-width // 4))
        size, half = channels * self.inner[1] * self.inner[2], channels // 2
        self.encoder = nn.Sequential(
            nn.Conv2d(colours, half, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(),
            nn.Conv2d(half, channels, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            _Residual(channels),
            nn.BatchNorm2d(channels),
            _Residual(channels),
            nn.Flatten(),
        )
        self.mean = nn.Linear(size, latent)
        self.log_variance = nn.Linear(size, latent)
        self.widen = nn.Linear(latent, size)
        self.decoder = nn.Sequential(
            _Residual(channels),
            nn.BatchNorm2d(channels),
            _Residual(channels),
            nn.BatchNorm2d(channels),
            nn.ConvTranspose2d(channels, half, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(half),
            nn.LeakyReLU(),
            nn.Tanh(),
            nn.ConvTranspose2d(half, colours, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(colours),
            nn.Sigmoid(),
        )

    def forward(self, pixels: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images and what was between.

        Args:
            pixels: in [0, 1], ``[n, c, h, w]``.
            noise: standard normal, ``[n, latent]``; zeros take the mean.

        Returns:
            Images in [0, 1] like ``pixels``; mean and log variance of the latent vectors, ``[n, latent]`` each.
        """
        h, w = pixels.shape[-2:]
        features = self.encoder(functional.pad(pixels, self.margins))
        mean, log_variance = self.mean(features), self.log_variance(features)
        wide = self.widen(mean + noise * torch.exp(log_variance / 2))
        return self.decoder(wide.unflatten(1, self.inner))[..., :h, :w], mean, log_variance


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LeakyReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.LeakyReLU(),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = x + self.layers(x)
        return answer
