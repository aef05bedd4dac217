"""Dense, locally connected and convolution layers: each against loops over its indices, and all against each other.

Weights and images are small integers, so every sum is exact in float32 and float64 whatever its order, and outputs are
compared for equality. Where numbers are not integers the test says what it allows.
"""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.nn.spatial import Convolution2d, DenseImage2d, LocallyConnected2d

CHANNELS = [(1, 1), (2, 3), (5, 2)]
# Every axis another prime; an even height or width as well, whose one-period window has no middle.
SIZES = [(5, 7), (4, 6), (1, 5), (2, 3)]
# delta: one pixel, each axis its own, larger than every image above, all offsets.
DELTAS = [0, 1, (2, 1), (0, 3), 8, None]
CASES = [(size, delta, padding) for size in SIZES for delta in DELTAS for padding in ("zeros", "circular")] + [
    ((5, 7), 0, "valid"),
    ((5, 7), 1, "valid"),
    ((5, 7), (2, 1), "valid"),
    ((5, 7), (0, 3), "valid"),
    ((5, 7), (2, 3), "valid"),
    ((4, 6), (1, 2), "valid"),
    ((1, 5), (0, 2), "valid"),
]


def integers(*shape, dtype=torch.float64):
    return torch.randint(-4, 5, shape).to(dtype)


def with_integers(layer):
    """The layer with small whole numbers for parameters."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(integers(*parameter.shape))
    return layer


def local(size, delta, padding, channels=(2, 3), **options):
    options = {"dtype": torch.float64} | options
    return with_integers(LocallyConnected2d(*channels, image_size=size, delta=delta, padding=padding, **options))


def convolution(size, delta, padding, channels=(2, 3), **options):
    options = {"dtype": torch.float64} | options
    return with_integers(Convolution2d(*channels, image_size=size, delta=delta, padding=padding, **options))


def offsets(size, delta, padding, shared):
    """The offsets a of one axis: from -delta to delta, or all that differ from each other."""
    if delta is not None:
        return range(-delta, delta + 1)
    if padding == "zeros" and shared:
        return range(-(size - 1), size)
    return range(-(size // 2), size - size // 2)  # modulo the image


def pixel(position, offset, size, delta, padding):
    """The pixel that a position sees at an offset; None outside the image."""
    if padding == "valid":
        return position + delta + offset
    if padding == "circular" or 0 <= position + offset < size:
        return (position + offset) % size
    return None


def by_index(layer, image, size, delta, padding):
    """h_oij = u + sum_c sum_ab v x_c,i+a,j+b, one number at a time."""
    shared = isinstance(layer, Convolution2d)
    deltas = delta if isinstance(delta, tuple) else (delta, delta)
    lost = [2 * d if padding == "valid" else 0 for d in deltas]
    out = torch.zeros(layer.out_channels, size[0] - lost[0], size[1] - lost[1], dtype=image.dtype)
    first, second = (offsets(n, d, padding, shared) for n, d in zip(size, deltas, strict=True))
    # All offsets of a locally connected layer, taken modulo the image, reach each pixel once for zeros as well.
    edge = "circular" if delta is None and not shared else padding
    weight, bias, values = layer.weight.tolist(), layer.bias.tolist(), image.tolist()
    for o, i, j in itertools.product(*map(range, out.shape)):
        total = bias[o] if shared else bias[o][i][j]
        window = weight[o] if shared else weight[o][i][j]
        for (m, a), (n, b) in itertools.product(enumerate(first), enumerate(second)):
            row, column = pixel(i, a, size[0], deltas[0], edge), pixel(j, b, size[1], deltas[1], edge)
            if row is not None and column is not None:
                total += sum(window[c][m][n] * values[c][row][column] for c in range(layer.in_channels))
        out[o, i, j] = total
    return out


class Watch(TorchDispatchMode):
    """Sees every tensor that an operation makes: on which device, and the largest storage in bytes."""

    def __init__(self):
        super().__init__()
        self.devices, self.largest = set(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.devices.add(tensor.device.type)
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        return made


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(20)


# The definitions


@pytest.mark.parametrize("output_size", [None, (3, 2)])
@pytest.mark.parametrize(("channels_in", "channels_out"), CHANNELS)
def test_dense_is_the_four_index_sum(channels_in, channels_out, output_size):
    layer = DenseImage2d(channels_in, channels_out, image_size=(5, 7), output_size=output_size, dtype=torch.float64)
    image, out = integers(channels_in, 5, 7), with_integers(layer)
    expected = torch.empty(channels_out, *(output_size or (5, 7)), dtype=torch.float64)
    for o, i, j in itertools.product(*map(range, expected.shape)):
        terms = itertools.product(range(channels_in), range(5), range(7))
        expected[o, i, j] = layer.bias[o, i, j] + sum(layer.weight[o, i, j, *at] * image[at] for at in terms)
    assert torch.equal(out(image), expected)


@pytest.mark.parametrize(("size", "delta", "padding"), CASES)
def test_locally_connected_is_its_sum_over_offsets(size, delta, padding):
    layer, image = local(size, delta, padding), integers(2, *size)
    assert torch.equal(layer(image), by_index(layer, image, size, delta, padding))


@pytest.mark.parametrize(("size", "delta", "padding"), CASES)
def test_convolution_is_its_sum_over_offsets(size, delta, padding):
    layer, image = convolution(size, delta, padding), integers(2, *size)
    assert torch.equal(layer(image), by_index(layer, image, size, delta, padding))


@pytest.mark.parametrize("size", SIZES)
def test_all_offsets_are_the_dense_weight_reindexed(size):
    height, width = size
    layer = local(size, None, "zeros")
    dense = layer.to_dense()
    assert layer.weight.numel() == dense.weight.numel() == 6 * (height * width) ** 2
    for i, j, row, column in itertools.product(range(height), range(width), range(height), range(width)):
        a, b = row - i, column - j
        v = layer.weight[:, i, j, :, (a + height // 2) % height, (b + width // 2) % width]
        assert torch.equal(v, dense.weight[:, i, j, :, row, column])
    circular = local(size, None, "circular")
    circular.load_state_dict(layer.state_dict())
    image = integers(11, 2, *size)
    assert torch.equal(circular(image), layer(image))


# One layer as another


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize(("size", "delta", "padding"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conversions_keep_the_outputs(size, delta, padding, channels, dtype):
    shared = convolution(size, delta, padding, channels, dtype=dtype)
    if delta is not None:
        shared.image_size = None  # one made for any size
    by_position = shared.to_locally_connected(None if delta is None else size)
    image = integers(11, channels[0], *size, dtype=dtype)
    out = shared(image)
    for layer in (by_position, by_position.to_dense(), shared.to_dense(None if delta is None else size)):
        assert layer(image).dtype == layer.weight.dtype == dtype
        assert torch.equal(layer(image), out)
    free = local(size, delta, padding, channels, dtype=dtype)
    assert torch.equal(free.to_dense()(image), free(image))


@pytest.mark.parametrize("padding", ["zeros", "circular", "valid"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_converted_layer_is_like_its_source_and_its_own(padding, bias):
    shared = convolution((5, 7), (2, 1), padding, bias=bias)
    shared.weight.requires_grad_(False)
    shared.eval()
    freed = convolution((5, 7), (2, 1), padding)
    freed.bias.requires_grad_(False)
    assert [p.requires_grad for p in freed.to_dense().parameters()] == [True, False]
    state, random = copy.deepcopy(shared.state_dict()), torch.get_rng_state()
    for layer in (shared.to_locally_connected(), shared.to_dense()):
        assert (layer.bias is not None) == bias
        assert layer.output_size == ((1, 5) if padding == "valid" else (5, 7))
        assert not layer.training
        assert not layer.weight.requires_grad
        assert all(p.is_leaf and p.is_contiguous() and p.device == shared.weight.device for p in layer.parameters())
        if bias:
            assert layer.bias.requires_grad
            assert torch.equal(layer.bias, shared.bias[:, None, None].expand_as(layer.bias))
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.zero_()
    assert all(torch.equal(shared.state_dict()[name], state[name]) for name in state)
    assert torch.equal(torch.get_rng_state(), random), "a conversion draws no random numbers"


def test_a_shared_weight_stands_at_every_position():
    shared = convolution((5, 7), 1, "zeros")
    weight = shared.to_locally_connected().weight
    assert torch.equal(weight, shared.weight[:, None, None].expand_as(weight))


def test_each_step_asks_for_fewer_weights():
    layers = [
        DenseImage2d(image_size=(5, 7), bias=False),
        LocallyConnected2d(image_size=(5, 7), bias=False),
        LocallyConnected2d(image_size=(5, 7), delta=1, bias=False),
        Convolution2d(delta=1, bias=False),
    ]
    assert [sum(p.numel() for p in layer.parameters()) for layer in layers] == [35 * 35, 35 * 35, 35 * 9, 9]


# Torch's convolution, and translations


@pytest.mark.parametrize("delta", [0, 1, (2, 1)])
@pytest.mark.parametrize("padding", ["zeros", "circular", "valid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convolution_equals_torch(delta, padding, dtype):
    layer = with_integers(Convolution2d(2, 3, delta=delta, padding=padding, dtype=dtype))
    window = layer.weight.shape[-2:]
    theirs = nn.Conv2d(
        2,
        3,
        tuple(window),
        padding=0 if padding == "valid" else (window[0] // 2, window[1] // 2),
        padding_mode="circular" if padding == "circular" else "zeros",
        dtype=dtype,
    )
    theirs.load_state_dict(layer.state_dict())
    for size in ((5, 7), (13, 11)):  # without image_size, any size
        image = integers(17, 2, *size, dtype=dtype)
        assert torch.equal(layer(image), theirs(image))


def test_all_offsets_equal_torch_with_a_window_of_twice_the_image():
    layer, image = convolution((5, 7), None, "zeros"), integers(11, 2, 5, 7)
    assert layer.weight.shape == (3, 2, 9, 13)
    assert torch.equal(layer(image), nn.functional.conv2d(image, layer.weight, layer.bias, padding=(4, 6)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("delta", DELTAS)
def test_a_circular_translation_passes_through_everywhere(size, delta):
    layer, image = convolution(size, delta, "circular"), integers(11, 2, *size)
    for shift in itertools.product(range(size[0]), range(size[1])):
        assert torch.equal(layer(image.roll(shift, (-2, -1))), layer(image).roll(shift, (-2, -1)))


@pytest.mark.parametrize("delta", [0, 1, (2, 1)])
@pytest.mark.parametrize("padding", ["zeros", "valid"])
def test_a_translation_passes_through_away_from_the_border(delta, padding):
    layer, image = with_integers(Convolution2d(2, 3, delta=delta, padding=padding)), integers(11, 2, 17, 19).float()
    down, right = 3, 2
    moved = nn.functional.pad(image, (right, 0, down, 0))[..., :17, :19]
    rows, columns = layer.weight.shape[-2] // 2, layer.weight.shape[-1] // 2  # what the border reaches
    before, after = layer(image), layer(moved)
    inner_before = before[..., rows : before.shape[-2] - down - rows, columns : before.shape[-1] - right - columns]
    inner_after = after[..., down + rows : after.shape[-2] - rows, right + columns : after.shape[-1] - columns]
    assert inner_before.numel() > 0
    assert torch.equal(inner_before, inner_after)


def test_a_locally_connected_layer_does_not_follow_a_translation():
    layer, image = local((5, 7), 1, "circular"), integers(11, 2, 5, 7)
    assert not torch.equal(layer(image.roll(1, -1)), layer(image).roll(1, -1))


# Gradients


@pytest.mark.parametrize(
    ("kind", "delta", "padding"),
    [
        (DenseImage2d, None, None),
        *itertools.product(
            (LocallyConnected2d, Convolution2d),
            (0, (0, 1), 3, None),  # through windows, and through the dense weight
            ("zeros", "circular"),
        ),
        (LocallyConnected2d, (0, 1), "valid"),
        (Convolution2d, (0, 1), "valid"),
    ],
)
def test_gradients(kind, delta, padding):
    options = {} if padding is None else {"delta": delta, "padding": padding}
    layer = kind(2, 1, image_size=(2, 3), dtype=torch.float64, **options)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def run(image, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (image,))

    image = torch.randn(2, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (image, *parameters))
    assert torch.autograd.gradgradcheck(run, (image, *parameters))


def test_weights_that_look_outside_the_image_get_no_gradient():
    layer = local((5, 7), 1, "zeros")
    layer(integers(11, 2, 5, 7)).sum().backward()
    assert torch.count_nonzero(layer.weight.grad[:, 0, :, :, 0]) == 0
    assert torch.count_nonzero(layer.weight.grad[:, :, -1, :, :, -1]) == 0


# Shapes, numbers, state


def layers(dtype=torch.float64, device=None):
    options = {"dtype": dtype, "device": device}
    return [
        DenseImage2d(2, 3, image_size=(5, 7), **options),
        LocallyConnected2d(2, 3, image_size=(5, 7), delta=(2, 1), **options),
        LocallyConnected2d(2, 3, image_size=(5, 7), delta=(2, 1), padding="circular", **options),
        LocallyConnected2d(2, 3, image_size=(5, 7), delta=(2, 1), padding="valid", **options),
        LocallyConnected2d(2, 3, image_size=(5, 7), **options),
        Convolution2d(2, 3, delta=(2, 1), **options),
        Convolution2d(2, 3, delta=(2, 1), padding="circular", **options),
        Convolution2d(2, 3, delta=(2, 1), padding="valid", **options),
        Convolution2d(2, 3, image_size=(5, 7), **options),
    ]


@pytest.mark.parametrize("layer", layers(), ids=repr)
def test_leading_axes(layer):
    with_integers(layer)
    images = integers(11, 13, 2, 5, 7)
    out = layer(images)
    assert out.shape[:3] == (11, 13, 3)
    assert torch.equal(layer(images[4, 6]), out[4, 6])
    assert torch.equal(layer(images[4]), out[4])
    assert torch.equal(layer(images.flip(0, -1).flip(0, -1)), out)
    strided = images.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0)
    assert torch.equal(layer(strided), out)
    assert layer(images[:0]).shape == (0, *out.shape[1:])
    assert layer(images[:, :0]).shape == (11, 0, *out.shape[2:])


@pytest.mark.parametrize("layer", layers(torch.float32), ids=repr)
def test_one_dtype_in_the_same_out(layer):
    image = torch.randn(11, 2, 5, 7)
    out, exact = layer(image), copy.deepcopy(layer).double()(image.double())
    assert out.dtype == torch.float32
    # A sum of n float32 products, each rounded, errs by less than n eps times the sum of magnitudes, here below n.
    terms = layer.weight.shape[-3:].numel() + 1
    assert (out - exact).abs().max() < terms * torch.finfo(torch.float32).eps * image.abs().max() * terms


@pytest.mark.parametrize("layer", layers(device="meta"), ids=repr)
def test_all_work_is_done_on_the_device_of_the_parameters(layer):
    image = torch.empty(11, 2, 5, 7, device="meta", dtype=torch.float64)
    with Watch() as watch:
        layer(image)
        if isinstance(layer, Convolution2d):
            layer.to_locally_connected((5, 7)).to_dense()
        if isinstance(layer, LocallyConnected2d):
            layer.to_dense()
    assert watch.devices == {"meta"}


@pytest.mark.parametrize("layer", layers(torch.float32), ids=repr)
def test_autocast_gives_its_own_dtype(layer):
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(11, 2, 5, 7)).dtype == torch.bfloat16


def test_memory_is_that_of_the_windows_or_of_the_dense_weight_whichever_is_less():
    with Watch() as small_window:
        LocallyConnected2d(2, 3, image_size=(53, 59), delta=1)(torch.randn(5, 2, 53, 59)).sum().backward()
    assert small_window.largest <= 4 * 5 * 2 * (53 * 59) * 9  # float32 windows of five images
    with Watch() as all_offsets:
        LocallyConnected2d(2, 3, image_size=(13, 11))(torch.randn(97, 2, 13, 11)).sum().backward()
    assert all_offsets.largest <= 4 * 3 * 2 * (13 * 11) * (14 * 12)  # the dense weight and its rim, for any batch


@pytest.mark.parametrize(("layer", "other"), list(zip(layers(), layers(), strict=True)), ids=repr)
def test_state_round_trip(layer, other):
    image = torch.randn(11, 2, 5, 7, dtype=torch.float64)
    assert not torch.equal(other(image), layer(image))
    other.load_state_dict(layer.state_dict())
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert torch.equal(other(image), layer(image))


def test_the_state_of_a_layer_without_bias():
    assert list(Convolution2d(delta=1, bias=False).state_dict()) == ["weight"]


def test_initial_numbers_are_torchs():
    torch.manual_seed(3)
    ours = Convolution2d(2, 3, delta=(2, 1), dtype=torch.float64)
    torch.manual_seed(3)
    theirs = nn.Conv2d(2, 3, (5, 3), dtype=torch.float64)
    # Two formulas for one bound, 1 / sqrt(fan in), each rounded: a few units in the last place.
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-15, atol=0)
    torch.manual_seed(3)
    dense = DenseImage2d(2, 3, image_size=(5, 7), dtype=torch.float64)
    torch.manual_seed(3)
    linear = nn.Linear(2 * 5 * 7, 3 * 5 * 7, dtype=torch.float64)
    torch.testing.assert_close(dense.weight.flatten(), linear.weight.flatten(), rtol=1e-15, atol=0)
    torch.testing.assert_close(dense.bias.flatten(), linear.bias, rtol=1e-15, atol=0)


@pytest.mark.parametrize("layer", layers(), ids=repr)
def test_reset_draws_anew_within_the_bound(layer):
    bound = 1 / math.sqrt(layer.weight.shape[-3:].numel())
    before = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    for name, parameter in layer.named_parameters():
        assert not torch.equal(parameter, before[name])
        assert parameter.abs().max() <= bound
    assert layer.weight.abs().max() > 0.9 * bound  # 90 weights and more: all below 0.9 once in 13,000 draws


def test_repr():
    assert [
        repr(DenseImage2d(2, 3, image_size=(5, 7))),
        repr(DenseImage2d(image_size=(5, 7), output_size=(3, 2), bias=False)),
        repr(LocallyConnected2d(2, 3, image_size=[5, 7], delta=1, padding="circular")),
        repr(LocallyConnected2d(image_size=(5, 7), bias=False)),
        repr(Convolution2d(2, 3, delta=(2, 1), padding="valid")),
        repr(Convolution2d(image_size=(5, 7), bias=False)),
    ] == [
        "DenseImage2d(2, 3, image_size=(5, 7))",
        "DenseImage2d(1, 1, image_size=(5, 7), output_size=(3, 2), bias=False)",
        "LocallyConnected2d(2, 3, image_size=(5, 7), delta=(1, 1), padding='circular')",
        "LocallyConnected2d(1, 1, image_size=(5, 7), delta=None, padding='zeros', bias=False)",
        "Convolution2d(2, 3, delta=(2, 1), padding='valid')",
        "Convolution2d(1, 1, delta=None, padding='zeros', image_size=(5, 7), bias=False)",
    ]


# Mistakes


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (
            lambda: DenseImage2d(0, image_size=(5, 7)),
            "`in_channels` must be an integer of at least 1; got 0.",
        ),
        (
            lambda: LocallyConnected2d(2, 1.5, image_size=(5, 7)),
            "`out_channels` must be an integer of at least 1; got 1.5.",
        ),
        (
            lambda: Convolution2d(True, delta=1),
            "`in_channels` must be an integer of at least 1; got True.",
        ),
        (
            lambda: LocallyConnected2d(image_size=7),
            "`image_size` must be (height, width), two integers of at least 1; got 7.",
        ),
        (
            lambda: Convolution2d(delta=1, image_size=(5, 0)),
            "`image_size` must be (height, width), two integers of at least 1; got (5, 0).",
        ),
        (
            lambda: DenseImage2d(image_size=(5, 7), output_size=(3, 5, 7)),
            "`output_size` must be (height, width), two integers of at least 1; got (3, 5, 7).",
        ),
        (
            lambda: LocallyConnected2d(image_size=(5, 7), delta=-1),
            "`delta` must be None, an integer of at least 0, or a pair (delta_height, delta_width) of such integers; "
            "got -1.",
        ),
        (
            lambda: Convolution2d(delta=(1, None)),
            "`delta` must be None, an integer of at least 0, or a pair (delta_height, delta_width) of such integers; "
            "got (1, None).",
        ),
        (
            lambda: Convolution2d(delta=1, padding="same"),
            '`padding` must be "zeros", "circular" or "valid"; got \'same\'.',
        ),
        (
            lambda: LocallyConnected2d(image_size=(5, 7), padding="valid"),
            '`padding="valid"` needs a `delta`; got delta=None (all offsets), and no position sees all offsets inside '
            'the image. Give a delta, or padding="zeros" or "circular".',
        ),
        (
            lambda: LocallyConnected2d(image_size=(5, 7), delta=(3, 1), padding="valid"),
            '`padding="valid"` needs an image no smaller than the window, 2 * delta + 1 = (7, 3); '
            "got image_size=(5, 7). Give a smaller delta, or another padding.",
        ),
        (
            lambda: Convolution2d(image_size=(5, 7), delta=(1, 4), padding="valid"),
            '`padding="valid"` needs an image no smaller than the window, 2 * delta + 1 = (3, 9); '
            "got image_size=(5, 7). Give a smaller delta, or another padding.",
        ),
        (
            lambda: Convolution2d(),
            "`delta=None` (all offsets) needs `image_size`, which sets the window; got None. "
            "Give image_size=(height, width), or a `delta`.",
        ),
        (
            lambda: Convolution2d(delta=1).to_dense(),
            "`image_size` is needed: this convolution takes images of any size, the new layer one. "
            "Give image_size=(height, width).",
        ),
        (
            lambda: Convolution2d(image_size=(5, 7)).to_locally_connected((7, 5)),
            "`image_size` must be that of this convolution, (5, 7); got (7, 5). Leave it out.",
        ),
        (
            lambda: DenseImage2d(2, image_size=(5, 7))(torch.zeros(11, 3, 5, 7)),
            "`input` must have shape (..., in_channels, height, width) = (..., 2, 5, 7); got (11, 3, 5, 7).",
        ),
        (
            lambda: LocallyConnected2d(image_size=(5, 7), delta=1)(torch.zeros(5, 7)),
            "`input` must have shape (..., in_channels, height, width) = (..., 1, 5, 7); got (5, 7).",
        ),
        (
            lambda: Convolution2d(image_size=(5, 7))(torch.zeros(1, 7, 5)),
            "`input` must have shape (..., in_channels, height, width) = (..., 1, 5, 7); got (1, 7, 5).",
        ),
        (
            lambda: Convolution2d(2, delta=1)(torch.zeros(3, 5, 7)),
            "`input` must have shape (..., in_channels, height, width) = (..., 2, height, width) with height >= 1 and "
            "width >= 1; got (3, 5, 7).",
        ),
        (
            lambda: Convolution2d(2, delta=(3, 1), padding="valid")(torch.zeros(2, 5, 7)),
            "`input` must have shape (..., in_channels, height, width) = (..., 2, height, width) with height >= 7 and "
            "width >= 3; got (2, 5, 7).",
        ),
        (
            lambda: Convolution2d(delta=1, padding="circular")(torch.zeros(1, 0, 7)),
            "`input` must have shape (..., in_channels, height, width) = (..., 1, height, width) with height >= 1 and "
            "width >= 1; got (1, 0, 7).",
        ),
        (
            lambda: Convolution2d(delta=1)(torch.zeros(1)),
            "`input` must have shape (..., in_channels, height, width) = (..., 1, height, width) with height >= 1 and "
            "width >= 1; got (1,).",
        ),
    ],
)
def test_mistakes_are_named(mistake, text):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the whole text is compared)
        mistake()
    assert str(error.value) == text
