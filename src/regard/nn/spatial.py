"""From a dense layer over an image to a convolution: the same sum three times, with less freedom each time.

- `DenseImage2d`, w_ijkl: every output pixel has a weight of its own for every input pixel.
- `LocallyConnected2d`, v_ijab: the same by offset; with a `delta` it has *locality*, nothing further away counts.
- `Convolution2d`, v_ab: it has *translation invariance* too, all positions share their weights.

Each layer converts into the ones above it without loss (`to_locally_connected`, `to_dense`).

Axes: `o` output channel, `c` input channel, `i, j` output position, `k, l` input pixel, `a, b` offset from the position
to the pixel, so k = i + a and l = j + b. A window of length K holds the offset `a` at index `a + K // 2`; for
K = 2 delta + 1 that is `a + delta`, as in every convolution layer. With `padding="valid"` the first output is that of
position i = delta, and so on.

Source: Zhang, Lipton, Li & Smola, Dive into Deep Learning, section "From Fully Connected Layers to Convolutions".
"""

import math
from numbers import Integral
from typing import Literal, TypeGuard, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Convolution2d", "DenseImage2d", "LocallyConnected2d"]

Padding = Literal["zeros", "circular", "valid"]
Pair = tuple[int, int]


class DenseImage2d(nn.Module):
    """An image whose every pixel is its own weighted sum of all pixels of the input image.

        h_oij = u_oij + sum_ckl w_oijckl x_ckl

    Nothing of the picture's geometry enters: shuffle the pixels of all images in the same way, shuffle the weights
    with them, and nothing has changed. `LocallyConnected2d` writes the same sum over offsets, where geometry can enter.

    Parameters
    ----------
    in_channels, out_channels : int >= 1
    image_size : (height, width) of the input
    output_size : (height, width) of the output, by default the same
    bias : whether there is a u, one number per output channel and position
    device, dtype : of the parameters

    Shapes
    ------
    weight (out_channels, *output_size, in_channels, *image_size), bias (out_channels, *output_size);
    input (..., in_channels, *image_size) gives (..., out_channels, *output_size), in the units of input times weight.
    Weight and bias start uniform on +-1 / sqrt(in_channels * height * width), as those of `torch.nn.Linear`.

    Raises
    ------
    ValueError : if a number of channels or a size is impossible, or the input has another shape.

    References
    ----------
    Zhang, Lipton, Li & Smola, Dive into Deep Learning, eq. 7.1.1, first line.

    Examples
    --------
    >>> import torch
    >>> from regard.nn.spatial import DenseImage2d
    >>> layer = DenseImage2d(image_size=(5, 7))
    >>> layer(torch.randn(11, 1, 5, 7)).shape
    torch.Size([11, 1, 5, 7])
    >>> layer.weight.numel() == (5 * 7) ** 2
    True
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 1,
        *,
        image_size: Pair,
        output_size: Pair | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = _channels("in_channels", in_channels)
        self.out_channels = _channels("out_channels", out_channels)
        self.image_size = _size("image_size", image_size)
        self.output_size = self.image_size if output_size is None else _size("output_size", output_size)
        per_position = (self.out_channels, *self.output_size)
        self.weight = nn.Parameter(
            torch.empty(*per_position, self.in_channels, *self.image_size, device=device, dtype=dtype)
        )
        self.bias = nn.Parameter(torch.empty(per_position, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew from torch's generator."""
        _reset(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """The output image, (..., out_channels, *output_size)."""
        _check_input(input, self.in_channels, self.image_size)
        return _dense(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        output_size = "" if self.output_size == self.image_size else f", output_size={self.output_size}"
        return f"{self.in_channels}, {self.out_channels}, image_size={self.image_size}{output_size}{_bias_repr(self)}"


class LocallyConnected2d(nn.Module):
    """An image whose every pixel is its own weighted sum of the input pixels around it.

        h_oij = u_oij + sum_c sum_ab v_oijcab x_c,i+a,j+b          v_oijcab = w_oijc,i+a,j+b

    It is `DenseImage2d` with the weight indexed by the offset (a, b) instead of the pixel (k, l). With `delta=None`
    all offsets are there and nothing else has changed: as many weights, the same outputs. A `delta` asks for
    *locality*: only |a|, |b| <= delta count, every other w_ijkl is zero. Let the weights of all positions be the same
    and it is a `Convolution2d`.

    Parameters
    ----------
    in_channels, out_channels : int >= 1
    image_size : (height, width) of the input
    delta : the largest offset, in pixels: an int >= 0, or one per axis (delta_height, delta_width); it may exceed the
        image. None (default): all offsets.
    padding : what stands at i + a, j + b outside the image.
        "zeros": zeros. The weights that meet them change nothing and get no gradient.
        "circular": the image again, from its other side. Offsets that wrap onto the same pixel add their weights.
        "valid": nothing; only positions whose whole window is inside have an output, which is 2 delta smaller.
    bias : whether there is a u, one number per output channel and position
    device, dtype : of the parameters

    All offsets (`delta=None`): from a position each pixel is reached by exactly one offset, so a window of image_size
    taken modulo image_size holds them all, for "zeros" and "circular" alike, with no weight to spare. "valid" needs a
    delta: no position sees all offsets inside the image.

    Shapes
    ------
    weight (out_channels, *output_size, in_channels, *window_size), bias (out_channels, *output_size);
    input (..., in_channels, *image_size) gives (..., out_channels, *output_size), in the units of input times weight.
    window_size is 2 delta + 1 (`delta=None`: image_size), output_size is image_size ("valid": minus 2 delta).
    Weight and bias start uniform on +-1 / sqrt(in_channels * window height * window width), as in `torch.nn.Conv2d`.
    A window smaller than the image costs a copy of all windows, (..., in_channels, *output_size, *window_size), a
    larger one a copy of the weight; both are kept for the backward.

    Raises
    ------
    ValueError : if a number of channels, a size, `delta` or `padding` is impossible, "valid" leaves no output, or the
        input has another shape.

    References
    ----------
    Zhang, Lipton, Li & Smola, Dive into Deep Learning, eq. 7.1.1, second line.

    Examples
    --------
    >>> import torch
    >>> from regard.nn.spatial import LocallyConnected2d
    >>> image = torch.randn(11, 1, 5, 7)
    >>> every_offset = LocallyConnected2d(image_size=(5, 7))
    >>> every_offset.weight.numel() == every_offset.to_dense().weight.numel() == (5 * 7) ** 2
    True
    >>> local = LocallyConnected2d(image_size=(5, 7), delta=1)
    >>> local.weight.numel() == (5 * 7) * 9
    True
    >>> torch.allclose(local(image), local.to_dense()(image), atol=1e-6)
    True
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 1,
        *,
        image_size: Pair,
        delta: int | Pair | None = None,
        padding: Padding = "zeros",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = _channels("in_channels", in_channels)
        self.out_channels = _channels("out_channels", out_channels)
        self.image_size = _size("image_size", image_size)
        self.padding = _padding(padding)
        self.delta = _delta(delta, self.padding)
        self.window_size = self.image_size if self.delta is None else _window(self.delta)
        self.output_size = _output_size(self.image_size, self.window_size, self.padding)
        per_position = (self.out_channels, *self.output_size)
        self.weight = nn.Parameter(
            torch.empty(*per_position, self.in_channels, *self.window_size, device=device, dtype=dtype)
        )
        self.bias = nn.Parameter(torch.empty(per_position, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew from torch's generator."""
        _reset(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """The output image, (..., out_channels, *output_size)."""
        _check_input(input, self.in_channels, self.image_size)
        if math.prod(self.window_size) >= math.prod(self.image_size):  # copies of windows would outgrow the dense layer
            return _dense(input, self._dense_weight(), self.bias)
        height, width = self.window_size
        windows = _extend(input, self.window_size, self.padding).unfold(-2, height, 1).unfold(-2, width, 1)
        output = torch.einsum("...cijab,oijcab->...oij", windows, self.weight)
        return output if self.bias is None else output + self.bias.to(output.dtype)  # lower under autocast

    def to_dense(self) -> DenseImage2d:
        """The dense layer with the same outputs: w_oijckl is the sum of the v_oijcab that see pixel (k, l), else 0."""
        dense = DenseImage2d(
            self.in_channels,
            self.out_channels,
            image_size=self.image_size,
            output_size=self.output_size,
            bias=self.bias is not None,
            device="meta",
        )
        with torch.no_grad():
            return _filled(dense, self, self._dense_weight(), self.bias)

    def _dense_weight(self) -> Tensor:
        # One row and one column more than the image: there falls what looks outside.
        height, width = self.image_size
        rows, columns = (_pixels(self, axis, self.weight.device) for axis in (0, 1))
        pixel = rows[:, None, :, None] * (width + 1) + columns[None, :, None, :]
        weight = self.weight.flatten(-2)
        padded = weight.new_zeros(*weight.shape[:-1], (height + 1) * (width + 1))
        padded = padded.scatter_add(-1, pixel.flatten(-2)[:, :, None].expand_as(weight), weight)
        return padded.reshape(*weight.shape[:-1], height + 1, width + 1)[..., :height, :width]

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, image_size={self.image_size}, delta={self.delta}, "
            f"padding={self.padding!r}{_bias_repr(self)}"
        )


class Convolution2d(nn.Module):
    """An image whose every pixel is the same weighted sum of the input pixels around it.

        h_oij = u_o + sum_c sum_ab v_ocab x_c,i+a,j+b

    It is `LocallyConnected2d` with v_oijcab = v_ocab: *translation invariance*, a translated input gives the
    translated output (everywhere with "circular" padding, away from the border otherwise). Like every convolution
    layer it does not flip the window. The next step is attention: there the weights come from comparing a query with
    a key, and a score that knows the offset alone makes them a convolution again.

    Parameters
    ----------
    in_channels, out_channels : int >= 1
    delta : the largest offset, in pixels: an int >= 0, or one per axis (delta_height, delta_width); it may exceed the
        image. None (default): all offsets, which needs `image_size`.
    padding : what stands at i + a, j + b outside the image: "zeros", "circular" (the image again, from its other side)
        or "valid" (nothing; only positions whose whole window is inside have an output, which is 2 delta smaller).
    image_size : (height, width) of the input, or None (default) for any size
    bias : whether there is a u, one number per output channel
    device, dtype : of the parameters

    All offsets (`delta=None`): for "zeros" those between any two pixels, the same as delta = (height - 1, width - 1);
    for "circular" each offset modulo image_size once, a window of image_size. "valid" needs a delta: no position sees
    all offsets inside the image.

    Shapes
    ------
    weight (out_channels, in_channels, *window_size), bias (out_channels,), both as in `torch.nn.Conv2d`, and drawn as
    there; input (..., in_channels, height, width) gives (..., out_channels, height, width) ("valid": each 2 delta
    smaller), in the units of input times weight. window_size is 2 delta + 1; for `delta=None` see above.

    Raises
    ------
    ValueError : if a number of channels, a size, `delta` or `padding` is impossible, `image_size` is missing, "valid"
        leaves no output, or the input has another shape.

    References
    ----------
    Zhang, Lipton, Li & Smola, Dive into Deep Learning, eq. 7.1.2 (all offsets) and 7.1.3 (cut).

    Examples
    --------
    >>> import torch
    >>> from regard.nn.spatial import Convolution2d
    >>> image = torch.randn(11, 1, 5, 7)
    >>> layer = Convolution2d(delta=1, padding="circular")
    >>> layer.weight.numel()
    9
    >>> shift = dict(shifts=(2, 3), dims=(-2, -1))
    >>> torch.allclose(layer(image.roll(**shift)), layer(image).roll(**shift), atol=1e-6)
    True
    >>> torch.allclose(layer(image), layer.to_dense(image_size=(5, 7))(image), atol=1e-6)
    True
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 1,
        *,
        delta: int | Pair | None = None,
        padding: Padding = "zeros",
        image_size: Pair | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = _channels("in_channels", in_channels)
        self.out_channels = _channels("out_channels", out_channels)
        self.image_size = None if image_size is None else _size("image_size", image_size)
        self.padding = _padding(padding)
        self.delta = _delta(delta, self.padding)
        if self.delta is not None:
            self.window_size = _window(self.delta)
        elif self.image_size is None:
            raise ValueError(
                "`delta=None` (all offsets) needs `image_size`, which sets the window; got None. "
                "Give image_size=(height, width), or a `delta`."
            )
        elif self.padding == "circular":
            self.window_size = self.image_size
        else:
            self.window_size = _window((self.image_size[0] - 1, self.image_size[1] - 1))
        if self.image_size is not None:
            _output_size(self.image_size, self.window_size, self.padding)  # refuses "valid" without an output
        self.weight = nn.Parameter(
            torch.empty(self.out_channels, self.in_channels, *self.window_size, device=device, dtype=dtype)
        )
        self.bias = nn.Parameter(torch.empty(self.out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew from torch's generator."""
        _reset(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """The output image, (..., out_channels, height, width); "valid": each 2 delta smaller."""
        least = self.window_size if self.padding == "valid" else (1, 1)
        _check_input(input, self.in_channels, self.image_size, least)
        images = _extend(input.reshape(-1, *input.shape[-3:]), self.window_size, self.padding)
        output = functional.conv2d(images, self.weight, self.bias)
        return output.reshape(*input.shape[:-3], *output.shape[-3:])

    def to_locally_connected(self, image_size: Pair | None = None) -> LocallyConnected2d:
        """The locally connected layer with the same outputs: v_oijcab = v_ocab at every position of the image.

        `image_size` may be left out if the layer has one.
        """
        if image_size is None and self.image_size is None:
            raise ValueError(
                "`image_size` is needed: this convolution takes images of any size, the new layer one. "
                "Give image_size=(height, width)."
            )
        size = self.image_size if image_size is None else _size("image_size", image_size)
        if size is None or self.image_size not in (None, size):
            raise ValueError(
                f"`image_size` must be that of this convolution, {self.image_size}; got {size}. Leave it out."
            )
        local = LocallyConnected2d(
            self.in_channels,
            self.out_channels,
            image_size=size,
            delta=self.delta,
            padding=self.padding,
            bias=self.bias is not None,
            device="meta",
        )
        with torch.no_grad():
            rows, columns = (self._window_index(local, axis) for axis in (0, 1))
            weight = self.weight[:, :, rows[:, None, :, None], columns[None, :, None, :]].permute(0, 2, 3, 1, 4, 5)
            bias = None if self.bias is None else self.bias[:, None, None].expand(-1, *local.output_size)
            return _filled(local, self, weight, bias)

    def _window_index(self, local: LocallyConnected2d, axis: int) -> Tensor:
        """Where in this window each position of `local` finds each entry of its own, (output size, window size)."""
        positions, window = local.output_size[axis], local.window_size[axis]
        device = self.weight.device
        if window == self.window_size[axis]:
            return torch.arange(window, device=device).expand(positions, window)
        # All offsets, "zeros": from one position only image_size of the 2 image_size - 1 offsets reach a pixel.
        offset = _pixels(local, axis, device) - torch.arange(positions, device=device)[:, None]
        return offset + self.window_size[axis] // 2

    def to_dense(self, image_size: Pair | None = None) -> DenseImage2d:
        """The dense layer with the same outputs: w_oijckl is v_ocab of the offset from (i, j) to (k, l), else 0.

        `image_size` may be left out if the layer has one.
        """
        return self.to_locally_connected(image_size).to_dense()

    def extra_repr(self) -> str:
        image_size = "" if self.image_size is None else f", image_size={self.image_size}"
        return (
            f"{self.in_channels}, {self.out_channels}, delta={self.delta}, padding={self.padding!r}"
            f"{image_size}{_bias_repr(self)}"
        )


def _dense(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = weight.flatten(-3).flatten(0, 2)  # one per output channel and position
    output = functional.linear(input.flatten(-3), rows, None if bias is None else bias.flatten())
    return output.reshape(*input.shape[:-3], *weight.shape[:3])


def _extend(images: Tensor, window: Pair, padding: Padding) -> Tensor:
    """The image with what the windows see beyond its border, so that position i has its window at i, ..., i + K - 1."""
    if padding == "valid":
        return images
    if padding == "zeros":  # the window is odd here: as much before as after
        return functional.pad(images, (window[1] // 2, window[1] // 2, window[0] // 2, window[0] // 2))
    for axis, length in zip((-2, -1), window, strict=True):  # torch's circular padding goes around once at most
        size = images.shape[axis]
        pixels = (torch.arange(size + length - 1, device=images.device) - length // 2) % size
        images = images.index_select(axis, pixels)
    return images


def _pixels(layer: LocallyConnected2d, axis: int, device: torch.device) -> Tensor:
    """The pixel k = i + a of each position and window entry, (output size, window size); if outside, image size."""
    size, window = layer.image_size[axis], layer.window_size[axis]
    first = 0 if layer.padding == "valid" else -(window // 2)
    pixel = torch.arange(layer.output_size[axis], device=device)[:, None] + torch.arange(window, device=device) + first
    if layer.padding == "circular" or layer.delta is None:  # all offsets: modulo the image, so that none is outside
        return pixel % size
    return torch.where((pixel < 0) | (pixel >= size), size, pixel)


def _reset(weight: Tensor, bias: Tensor | None) -> None:
    # Kaiming's uniform with a = sqrt(5), the default of nn.Linear and nn.Conv2d, is +-1 / sqrt(fan in). The fan in of
    # every layer here is the last three axes: input channels and two of pixels or offsets.
    bound = 1 / math.sqrt(weight.shape[-3:].numel())
    for parameter in (weight, bias):
        if parameter is not None:
            nn.init.uniform_(parameter, -bound, bound)


Layer = TypeVar("Layer", DenseImage2d, LocallyConnected2d)


def _filled(layer: Layer, source: LocallyConnected2d | Convolution2d, weight: Tensor, bias: Tensor | None) -> Layer:
    """`layer`, made without memory on the meta device, with its own copies of these parameters."""
    layer.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format), source.weight.requires_grad)
    if bias is not None and source.bias is not None:
        layer.bias = nn.Parameter(bias.clone(memory_format=torch.contiguous_format), source.bias.requires_grad)
    return layer.train(source.training)


def _is_count(value: object, least: int) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _pair(value: object, least: int) -> Pair | None:
    match value:
        case (height, width) if _is_count(height, least) and _is_count(width, least):
            return int(height), int(width)
    return None


def _channels(name: str, value: int) -> int:
    if not _is_count(value, 1):
        raise ValueError(f"`{name}` must be an integer of at least 1; got {value!r}.")
    return int(value)


def _size(name: str, value: object) -> Pair:
    pair = _pair(value, 1)
    if pair is None:
        raise ValueError(f"`{name}` must be (height, width), two integers of at least 1; got {value!r}.")
    return pair


def _padding(value: Padding) -> Padding:
    if value not in get_args(Padding):
        raise ValueError(f'`padding` must be "zeros", "circular" or "valid"; got {value!r}.')
    return value


def _delta(value: object, padding: Padding) -> Pair | None:
    if value is None:
        if padding == "valid":
            raise ValueError(
                '`padding="valid"` needs a `delta`; got delta=None (all offsets), and no position sees all offsets '
                'inside the image. Give a delta, or padding="zeros" or "circular".'
            )
        return None
    pair = _pair((value, value) if isinstance(value, Integral) else value, 0)
    if pair is None:
        raise ValueError(
            "`delta` must be None, an integer of at least 0, or a pair (delta_height, delta_width) of such integers; "
            f"got {value!r}."
        )
    return pair


def _window(delta: Pair) -> Pair:
    return 2 * delta[0] + 1, 2 * delta[1] + 1


def _output_size(image_size: Pair, window: Pair, padding: Padding) -> Pair:
    if padding != "valid":
        return image_size
    if image_size[0] < window[0] or image_size[1] < window[1]:
        raise ValueError(
            f'`padding="valid"` needs an image no smaller than the window, 2 * delta + 1 = {window}; '
            f"got image_size={image_size}. Give a smaller delta, or another padding."
        )
    return image_size[0] - window[0] + 1, image_size[1] - window[1] + 1


def _check_input(input: Tensor, channels: int, image_size: Pair | None, least: Pair = (1, 1)) -> None:
    shape = tuple(input.shape)
    if image_size is not None:
        if shape[-3:] != (channels, *image_size):
            raise ValueError(
                "`input` must have shape (..., in_channels, height, width) = "
                f"(..., {channels}, {image_size[0]}, {image_size[1]}); got {shape}."
            )
    elif len(shape) < 3 or shape[-3] != channels or shape[-2] < least[0] or shape[-1] < least[1]:
        raise ValueError(
            f"`input` must have shape (..., in_channels, height, width) = (..., {channels}, height, width) with "
            f"height >= {least[0]} and width >= {least[1]}; got {shape}."
        )


def _bias_repr(layer: nn.Module) -> str:
    return ", bias=False" if layer.bias is None else ""
