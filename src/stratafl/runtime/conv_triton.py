"""The Triton kernels of `kernels.py`: convolutions as products whose columns are never stored.

Images are `[C, channels, B, h, w]`, weights `[C, out, in, kh, kw]`, both contiguous. A place is one pixel of one
sample; places of a channel lie one after the other, so that neighbouring threads read neighbouring numbers. The sums
run over (channel, tap) in the order in which a weight lies in memory, or tap by tap. Which taps meet the image is one
bit each: a bit of the place and a bit of the column say together whether a number is read or is zero.

This is Triton's language, not Python: what is annotated as `constexpr` is fixed when a kernel is compiled, everything
else is read when it is launched. `max_contiguous` only says along which axis threads lie side by side, which versions
of Triton guess differently; numbers are still read one by one, because their addresses are multiples of nothing known.
"""

from types import SimpleNamespace

try:
    import triton.language as tl
    from triton import jit
except ImportError:  # `kernels.usable` says so, and nothing below is called
    tl = SimpleNamespace(constexpr=int)

    def jit(function=None, **options):
        return function or jit


@jit
def meeting_taps(top, left, H, W, rows, cols, KH: tl.constexpr, KW: tl.constexpr, SIGN: tl.constexpr):
    """One bit for each tap that meets the image from a place, of the first `rows` × `cols` taps."""
    across = left * 0
    for j in tl.static_range(KW):
        x = left + SIGN * j
        across |= ((x >= 0) & (x < W) & (j < cols)).to(tl.int32) << j
    across = across.to(tl.int64) if KH * KW > 31 else across
    bits = across * 0
    for i in tl.static_range(KH):
        y = top + SIGN * i
        meets = (y >= 0) & (y < H) & (i < rows)
        bits |= tl.where(meets, across << (i * KW), 0)
    return bits


@jit
def tap_bit(tap, TAPS: tl.constexpr):
    """The bit of a tap."""
    unit = tap * 0 + 1
    if TAPS > 31:
        return unit.to(tl.int64) << tap.to(tl.int64)
    else:
        return unit << tap


@jit
def product(a, b, total, PRECISION: tl.constexpr):
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    elif PRECISION == "tf32":
        return tl.dot(a, b, total, input_precision="tf32")
    else:
        return tl.dot(a, b, total, input_precision="ieee")


# Sizes in which alignment plays no part: geometries share compiled kernels.
@jit(do_not_specialize=("B", "H", "W", "results", "HR", "WR", "parts"))
def images(
    source,  # [C, sources, B, H, W]: the image, or the gradient of the output
    weight,
    result,  # [C, PARTS, results, B, HR, WR]
    B,
    sources,
    H,
    W,
    results,
    HR,
    WR,
    source_row,  # B·H·W
    weight_client,
    weight_result,  # from one channel of the result to the next
    weight_source,
    parts,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    START_H: tl.constexpr,
    START_W: tl.constexpr,
    BACK: tl.constexpr,
    TAPWISE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The output of a convolution, or with BACK the gradient of its input, both from a gathered image.

    With BACK and a stride, pixels whose coordinates have the same remainder meet the same taps: each such class is a
    convolution of stride 1 with those taps alone, and programs of all classes run side by side.
    """
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    tile = tl.program_id(0)
    if BACK and STRIDE_H * STRIDE_W > 1:
        kind = tile % (STRIDE_H * STRIDE_W)
        tile = tile // (STRIDE_H * STRIDE_W)
        first_h = kind // STRIDE_W
        first_w = kind % STRIDE_W
        tap_h = ((first_h - START_H) % STRIDE_H + STRIDE_H) % STRIDE_H  # the first tap of this class
        tap_w = ((first_w - START_W) % STRIDE_W + STRIDE_W) % STRIDE_W
        rows = (KH - tap_h + STRIDE_H - 1) // STRIDE_H
        cols = (KW - tap_w + STRIDE_W - 1) // STRIDE_W
        origin_h = (first_h - START_H - tap_h) // STRIDE_H
        origin_w = (first_w - START_W - tap_w) // STRIDE_W
        height = (HR - first_h + STRIDE_H - 1) // STRIDE_H
        width = (WR - first_w + STRIDE_W - 1) // STRIDE_W
    else:
        rows = KH
        cols = KW
        height = HR
        width = WR
    tiles = tl.cdiv(results, BLOCK_R)
    r = (tile % tiles) * BLOCK_R + tl.arange(0, BLOCK_R)
    p = (tile // tiles) * BLOCK_P + tl.arange(0, BLOCK_P)
    places = B * height * width
    sample = p // (height * width)
    y = (p // width) % height
    x = p % width
    if BACK:
        SIGN: tl.constexpr = -1
        if STRIDE_H * STRIDE_W > 1:
            top = y + origin_h
            left = x + origin_w
        else:
            top = y - START_H
            left = x - START_W
    else:
        SIGN: tl.constexpr = 1
        top = y * STRIDE_H + START_H
        left = x * STRIDE_W + START_W
    bits = tl.where(p < places, meeting_taps(top, left, H, W, rows, cols, KH, KW, SIGN), 0)
    origin = sample * (H * W) + top * W + left

    K = sources * rows * cols
    steps = tl.cdiv(tl.cdiv(K, BLOCK_K), parts)
    source += client * sources * source_row
    weight += client * weight_client
    total = tl.zeros((BLOCK_P, BLOCK_R), dtype=tl.float32)
    for step in range(part * steps, tl.minimum((part + 1) * steps, tl.cdiv(K, BLOCK_K))):
        if TAPWISE:
            tap = (step * BLOCK_K) // sources
            channel = step * BLOCK_K - tap * sources + tl.arange(0, BLOCK_K)
            inside = channel < sources
        else:
            k = step * BLOCK_K + tl.arange(0, BLOCK_K)
            channel = k // (rows * cols)
            tap = k % (rows * cols)
            inside = k < K
        i = tap // cols
        j = tap % cols
        if BACK and STRIDE_H * STRIDE_W > 1:
            in_kernel = (tap_h + i * STRIDE_H) * KW + tap_w + j * STRIDE_W
        else:
            in_kernel = tap
        if TAPWISE:
            in_weight = in_kernel * sources + channel
        elif BACK:
            in_weight = channel * weight_source + in_kernel
        else:
            in_weight = k
        at = r[:, None] * weight_result + in_weight[None, :]
        if BACK and KH * KW > 1 and not TAPWISE:
            at = tl.max_contiguous(at, (1, 2))
        factors = tl.load(
            weight + at,
            mask=(r[:, None] < results) & inside[None, :],
            other=0.0,
        )
        # 32 threads read four columns of eight places each, and write them side by side into shared memory.
        shift = tl.reshape(channel * source_row + SIGN * (i * W + j), (BLOCK_K // 4, 1, 4))
        if TAPWISE:
            meets = (tap_bit(i * KW + j, KH * KW) & bits) != 0
            meets = tl.broadcast_to(meets[None, :, None], (BLOCK_K // 4, BLOCK_P, 4))
        else:
            seen = tl.where(inside, tap_bit(i * KW + j, KH * KW), 0)
            meets = (tl.reshape(seen, (BLOCK_K // 4, 1, 4)) & bits[None, :, None]) != 0
        at = tl.max_contiguous(shift + origin[None, :, None], (1, 2, 4))
        gathered = tl.load(source + at, mask=meets, other=0.0)
        gathered = tl.reshape(tl.permute(gathered, (1, 0, 2)), (BLOCK_P, BLOCK_K))
        total = product(gathered, tl.trans(factors), total, PRECISION)

    if BACK and STRIDE_H * STRIDE_W > 1:
        at = sample * (HR * WR) + (y * STRIDE_H + first_h) * WR + x * STRIDE_W + first_w
    else:
        at = p
    result += (client * parts + part) * results * (B * HR * WR)
    at = r[:, None] * (B * HR * WR) + at[None, :]
    if BACK and STRIDE_H * STRIDE_W > 1:
        at = tl.max_contiguous(at, (1, 2))
    tl.store(result + at, tl.trans(total), mask=(r[:, None] < results) & (p[None, :] < places))


@jit(do_not_specialize=("B", "H", "W", "outputs", "HO", "WO", "parts"))
def weights(
    image,  # [C, inputs, B, H, W]
    gradient,  # [C, outputs, B, HO, WO]
    result,  # [C, PARTS, outputs, inputs, KH, KW]
    B,
    inputs,
    H,
    W,
    outputs,
    HO,
    WO,
    image_row,  # B·H·W
    gradient_row,  # B·HO·WO
    parts,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    START_H: tl.constexpr,
    START_W: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The gradient of the weight: the sum over places of gradient times gathered image."""
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    tile = tl.program_id(0)
    tiles = tl.cdiv(outputs, BLOCK_R)
    r = (tile % tiles) * BLOCK_R + tl.arange(0, BLOCK_R)
    k = (tile // tiles) * BLOCK_K + tl.arange(0, BLOCK_K)
    K = inputs * KH * KW
    tap = k % (KH * KW)
    seen = tl.where(k < K, tap_bit(tap, KH * KW), 0)
    column = (k // (KH * KW)) * image_row + (tap // KW) * W + tap % KW
    places = B * HO * WO
    steps = tl.cdiv(tl.cdiv(places, BLOCK_P), parts)
    image += client * inputs * image_row
    gradient += client * outputs * gradient_row
    total = tl.zeros((BLOCK_R, BLOCK_K), dtype=tl.float32)
    for step in range(part * steps, (part + 1) * steps):
        p = step * BLOCK_P + tl.arange(0, BLOCK_P)
        top = ((p // WO) % HO) * STRIDE_H + START_H
        left = (p % WO) * STRIDE_W + START_W
        bits = tl.where(p < places, meeting_taps(top, left, H, W, KH, KW, KH, KW, 1), 0)
        origin = (p // (HO * WO)) * (H * W) + top * W + left
        slopes = tl.load(
            gradient + r[:, None] * gradient_row + p[None, :],
            mask=(r[:, None] < outputs) & (p[None, :] < gradient_row),
            other=0.0,
        )
        at = tl.max_contiguous(column[:, None] + origin[None, :], (1, 2))
        gathered = tl.load(image + at, mask=(seen[:, None] & bits[None, :]) != 0, other=0.0)
        total = product(slopes, tl.trans(gathered), total, PRECISION)

    result += (client * parts + part) * outputs * K
    tl.store(result + r[:, None] * K + k[None, :], total, mask=(r[:, None] < outputs) & (k[None, :] < K))
