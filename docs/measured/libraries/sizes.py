"""What cuFFT and cuSOLVER answer on a GPU when they are asked for the size of a workspace, and what cuBLAS's are in PyTorch.

    python sizes.py > answers.jsonl

Each line is one call: its name, its arguments, its answer. The libraries are those that PyTorch has loaded.
"""

import ctypes
import json
import sys
import time

import torch

BEGAN = time.time()
LIMIT = float(sys.argv[1]) if len(sys.argv) > 1 else 60


def say(**row):
    print(json.dumps(row), flush=True)


def loaded(name):
    for line in open("/proc/self/maps"):
        path = line.split()[-1]
        if path.rsplit("/", 1)[-1].startswith(name):
            return ctypes.CDLL(path)
    raise SystemExit(f"{name} is not loaded")


def free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def blas():
    """PyTorch's own workspaces: what stays allocated after a product."""

    def grown(make):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        out = make()
        torch.cuda.synchronize()
        del out
        return torch.cuda.memory_allocated() - before

    a, b = torch.ones(512, 512, device="cuda"), torch.ones(512, device="cuda")
    h, c = a.to(torch.bfloat16), b.to(torch.bfloat16)
    say(call="first matmul fp32", answer=grown(lambda: a @ a))
    say(call="addmm fp32", answer=grown(lambda: torch.addmm(b, a, a)))
    say(call="matmul bf16", answer=grown(lambda: h @ h))
    say(call="linear bf16", answer=grown(lambda: torch.nn.functional.linear(h, h, c)))
    say(call="gelu linear bf16", answer=grown(lambda: torch._addmm_activation(c, h, h, use_gelu=True)))
    say(call="bmm", answer=grown(lambda: torch.bmm(a[None].expand(3, -1, -1), a[None].expand(3, -1, -1))))
    f8 = a.to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    say(call="scaled_mm", answer=grown(lambda: torch._scaled_mm(f8, f8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        say(call="matmul on another stream", answer=grown(lambda: a @ a))
        say(call="linear on another stream", answer=grown(lambda: torch.nn.functional.linear(h, h, c)))
    say(call="peak", answer=[torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])


def pytorch():
    """What PyTorch's own calls take: the peak beyond what was there."""

    def peak(make):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before, was = torch.cuda.memory_allocated(), free()
        out = make()
        torch.cuda.synchronize()
        result = torch.cuda.max_memory_allocated() - before
        past = was - free() - torch.cuda.memory_reserved()
        del out
        return [result, torch.cuda.max_memory_reserved(), past]

    for shape in ((64, 1024), (64, 4096), (8, 65536), (4, 1 << 20), (64, 1021), (8, 10007), (1, 1000003), (64, 1000), (16, 3 * 2**14)):
        x = torch.zeros(shape, device="cuda")
        say(call="torch.fft.fft", args=shape, answer=peak(lambda: torch.fft.fft(x)))
        say(call="torch.fft.rfft", args=shape, answer=peak(lambda: torch.fft.rfft(x)))
        y = torch.zeros(shape[0], shape[1] // 2 + 1, dtype=torch.complex64, device="cuda")
        say(call="torch.fft.irfft", args=shape, answer=peak(lambda: torch.fft.irfft(y, n=shape[1])))
    for shape in ((8, 256, 256), (2, 1024, 1024), (8, 100, 101), (2, 1000, 1000), (4, 64, 64, 64), (1, 100, 100, 100)):
        x = torch.zeros(shape, device="cuda")
        dims = tuple(range(1, len(shape)))
        say(call="torch.fft.fftn", args=shape, answer=peak(lambda: torch.fft.fftn(x, dim=dims)))
        say(call="torch.fft.rfftn", args=shape, answer=peak(lambda: torch.fft.rfftn(x, dim=dims)))
        y = torch.zeros(*shape[:-1], shape[-1] // 2 + 1, dtype=torch.complex64, device="cuda")
        say(call="torch.fft.irfftn", args=shape, answer=peak(lambda: torch.fft.irfftn(y, s=shape[1:], dim=dims)))
    for shape in ((64, 1024), (8, 65536), (8, 256, 256)):
        x = torch.zeros(shape, dtype=torch.float16, device="cuda")
        dims = tuple(range(1, len(shape)))
        say(call="torch.fft.rfftn half", args=shape, answer=peak(lambda: torch.fft.rfftn(x, dim=dims)))
        x = torch.zeros(shape, dtype=torch.complex32, device="cuda")
        say(call="torch.fft.fftn half", args=shape, answer=peak(lambda: torch.fft.fftn(x, dim=dims)))
    for dtype in (torch.float32, torch.float64):
        for shape in ((16, 16), (33, 33), (256, 256), (512, 512), (513, 513), (1024, 1024), (4096, 4096), (8, 16, 16), (8, 32, 32), (8, 64, 64), (4, 600, 600)):
            x = torch.eye(shape[-1], dtype=dtype, device="cuda").expand(shape)
            for name in ("eigh", "eigvalsh"):
                say(call="torch.linalg." + name, args=[str(dtype), *shape], answer=peak(lambda: getattr(torch.linalg, name)(x)))
    for n in (64, 512, 2048):
        x = torch.eye(n, device="cuda") + 1e-3
        for name in ("inv", "cholesky", "qr", "svd", "solve", "lu", "eig", "det", "lstsq"):
            call = getattr(torch.linalg, name)
            say(call="torch.linalg." + name, args=[n], answer=peak(lambda: call(x, x) if name in ("solve", "lstsq") else call(x)))


R16, C16, R32, C32, R64, C64 = 2, 6, 0, 4, 1, 5


def fft():
    library = loaded("libcufft.so")

    def size(shape, batch, first, second, execution):
        plan, bytes_ = ctypes.c_int(), ctypes.c_size_t()
        if library.cufftCreate(ctypes.byref(plan)):
            return None
        library.cufftSetAutoAllocation(plan, 0)
        before = torch.cuda.mem_get_info()[0]
        lengths = (ctypes.c_longlong * len(shape))(*shape)
        # As PyTorch calls it: embedding said, strides of one.
        half = (*shape[:-1], shape[-1] // 2 + 1)
        one = half if first in (C16, C32, C64) and second in (R16, R32, R64) else shape
        two = half if first in (R16, R32, R64) else shape

        def volume(dims):
            out = 1
            for dim in dims:
                out *= dim
            return out

        ins, outs = (ctypes.c_longlong * len(shape))(*one), (ctypes.c_longlong * len(shape))(*two)
        status = library.cufftXtMakePlanMany(
            plan,
            len(shape),
            lengths,
            ins,
            ctypes.c_longlong(1),
            ctypes.c_longlong(volume(one)),
            first,
            outs,
            ctypes.c_longlong(1),
            ctypes.c_longlong(volume(two)),
            second,
            ctypes.c_longlong(batch),
            ctypes.byref(bytes_),
            execution,
        )
        taken = before - torch.cuda.mem_get_info()[0]
        library.cufftDestroy(plan)
        return bytes_.value if status == 0 else f"status {status}", taken

    kinds = {
        "c2c32": (C32, C32, C32),
        "r2c32": (R32, C32, C32),
        "c2r32": (C32, R32, C32),
        "c2c64": (C64, C64, C64),
        "r2c64": (R64, C64, C64),
        "c2c16": (C16, C16, C16),
        "r2c16": (R16, C16, C16),
    }
    lines = sorted(
        {
            *range(2, 70),
            *(2**k for k in range(1, 26)),
            *(3**k for k in range(1, 15)),
            *(5**k for k in range(1, 10)),
            *(7**k for k in range(1, 8)),
            *(11**k for k in range(1, 6)),
            *(13**k for k in range(1, 6)),
            100,
            120,
            127,
            131,
            200,
            257,
            300,
            360,
            400,
            480,
            499,
            500,
            509,
            600,
            640,
            720,
            768,
            960,
            1000,
            1021,
            1023,
            1025,
            1200,
            1280,
            1500,
            1536,
            1920,
            2000,
            2039,
            2047,
            2049,
            2560,
            3000,
            3072,
            4093,
            4095,
            4097,
            4410,
            5000,
            6000,
            8191,
            8193,
            10000,
            10007,
            12000,
            12288,
            16000,
            16381,
            20000,
            22050,
            24000,
            30000,
            32000,
            32749,
            44100,
            48000,
            49152,
            65521,
            65537,
            80000,
            96000,
            100000,
            100003,
            131071,
            160000,
            196608,
            441000,
            480000,
            1000000,
            1000003,
            2000000,
            3000000,
            5242880,
        }
    )

    def rows():
        for n in lines:
            for kind in ("c2c32", "r2c32", "c2r32"):
                for batch in (1, 16):
                    yield kind, (n,), batch
        for n in lines:
            yield "c2c64", (n,), 1
            yield "r2c64", (n,), 1
            if n & (n - 1) == 0:
                yield "c2c16", (n,), 1
                yield "r2c16", (n,), 16
        flat = (8, 16, 32, 50, 64, 100, 101, 128, 200, 224, 256, 300, 384, 500, 509, 512, 640, 768, 1000, 1021, 1024, 1080, 1920, 2000, 2048, 4096)
        for kind in ("c2c32", "r2c32", "c2r32"):
            for n in flat:
                for batch in (1, 8):
                    yield kind, (n, n), batch
            for shape in ((64, 1000), (1000, 64), (1080, 1920), (1920, 1080), (128, 4096), (4096, 128), (101, 512), (512, 101), (31, 8192), (8192, 31)):
                yield kind, shape, 4
            for n in (8, 16, 31, 32, 50, 64, 96, 100, 101, 128, 200, 256):
                yield kind, (n, n, n), 2
            for shape in ((32, 64, 128), (128, 64, 32), (100, 64, 64), (64, 100, 64), (64, 64, 100)):
                yield kind, shape, 1
        for batch in (65, 80, 96, 112, 127, 128, 129, 160, 192, 255, 256, 512, 4096):
            for n in (32768, 65536, 131072, 262144, 1048576):
                if n * batch <= 1 << 28:
                    yield "r2c32", (n,), batch
                    yield "c2r32", (n,), batch
            for n in (48000, 44100, 1200, 4410, 1021, 10007, 2000):
                yield "r2c32", (n,), batch
                yield "c2c32", (n,), batch
            for n in (32768, 65536):
                yield "c2c32", (n,), batch
                yield "r2c64", (n,), batch
                yield "r2c16", (n,), batch
            yield "r2c32", (500, 500), batch
            yield "r2c32", (1080, 1080), batch
        for batch in (2, 3, 4, 7, 64, 256, 1000):
            for n in (64, 1000, 1021, 4096, 8192, 16384, 65536, 1000003):
                if n * batch < 1 << 27:
                    yield "c2c32", (n,), batch
                    yield "r2c32", (n,), batch

    for kind, shape, batch in rows():
        if time.time() - BEGAN > LIMIT:
            say(call="stopped", answer=[kind, shape, batch])
            break
        answer = size(shape, batch, *kinds[kind])
        say(call="fft", args=[kind, list(shape), batch], answer=answer[0], past=answer[1])


def solver():
    library = loaded("libcusolver.so")
    handle, parameters = ctypes.c_void_p(), ctypes.c_void_p()
    library.cusolverDnCreate(ctypes.byref(handle))
    library.cusolverDnCreateParams(ctypes.byref(parameters))
    jacobi, jacobi_svd = ctypes.c_void_p(), ctypes.c_void_p()
    library.cusolverDnCreateSyevjInfo(ctypes.byref(jacobi))
    library.cusolverDnCreateGesvdjInfo(ctypes.byref(jacobi_svd))
    pointer = ctypes.c_void_p(torch.zeros(1 << 20, device="cuda").data_ptr())
    long, size = ctypes.c_int64, ctypes.c_size_t

    sizes = sorted(
        {
            *range(1, 40),
            48,
            63,
            64,
            65,
            96,
            100,
            127,
            128,
            129,
            160,
            192,
            200,
            255,
            256,
            257,
            300,
            320,
            384,
            400,
            500,
            511,
            512,
            513,
            600,
            640,
            700,
            768,
            800,
            900,
            1000,
            1023,
            1024,
            1025,
            1200,
            1280,
            1500,
            1536,
            1792,
            2000,
            2047,
            2048,
            2049,
            2500,
            3000,
            3072,
            4000,
            4096,
            5000,
            6000,
            8192,
            10000,
            16384,
        }
    )
    names = {R32: "S", R64: "D", C32: "C", C64: "Z"}
    for n in sizes:
        for kind, of_values in ((R32, R32), (R64, R64), (C32, R32), (C64, R64)):
            for vectors in (0, 1):
                device, host = size(), size()
                status = library.cusolverDnXsyevd_bufferSize(
                    handle, parameters, vectors, 0, long(n), kind, pointer, long(n), of_values, pointer, kind, ctypes.byref(device), ctypes.byref(host)
                )
                say(call="Xsyevd", args=[names[kind], vectors, n], answer=[device.value, host.value] if not status else f"status {status}")
                if n <= 600 or n in (1000, 1024, 2048):
                    for batch in (1, 8):
                        status = library.cusolverDnXsyevBatched_bufferSize(
                            handle, parameters, vectors, 0, long(n), kind, pointer, long(n), of_values, pointer, kind, ctypes.byref(device), ctypes.byref(host), long(batch)
                        )
                        say(call="XsyevBatched", args=[names[kind], vectors, n, batch], answer=[device.value, host.value] if not status else f"status {status}")
            letter = names[kind]
            work = ctypes.c_int()

            def ask(name, args, call):
                work.value = -1
                status = call()
                say(call=name, args=[letter, *args], answer=work.value if not status else f"status {status}")

            get = lambda name: getattr(library, f"cusolverDn{letter}{name}_bufferSize")
            symmetric = "sy" if kind in (R32, R64) else "he"
            orthogonal = "or" if kind in (R32, R64) else "un"
            if n <= 2048:
                for vectors in (0, 1):
                    ask("syevj", [vectors, n], lambda: get(symmetric + "evj")(handle, vectors, 0, n, pointer, n, pointer, ctypes.byref(work), jacobi))
                    if n <= 64:
                        for batch in (1, 8, 100):
                            ask(
                                "syevjBatched",
                                [vectors, n, batch],
                                lambda: get(symmetric + "evjBatched")(handle, vectors, 0, n, pointer, n, pointer, ctypes.byref(work), jacobi, batch),
                            )
            if kind in (R32, R64):
                ask("potrf", [n], lambda: get("potrf")(handle, 0, n, pointer, n, ctypes.byref(work)))
                ask("gesvd", [n, n], lambda: get("gesvd")(handle, n, n, ctypes.byref(work)))
                for rows in sorted({n, 2 * n, 1000}):
                    ask("getrf", [rows, n], lambda: get("getrf")(handle, rows, n, pointer, rows, ctypes.byref(work)))
                    if rows < n:
                        continue
                    ask("geqrf", [rows, n], lambda: get("geqrf")(handle, rows, n, pointer, rows, ctypes.byref(work)))
                    ask("orgqr", [rows, n], lambda: get(orthogonal + "gqr")(handle, rows, n, n, pointer, rows, pointer, ctypes.byref(work)))
                    if n <= 2048:
                        ask("gesvdj", [rows, n], lambda: get("gesvdj")(handle, 1, 1, rows, n, pointer, rows, pointer, pointer, rows, pointer, n, ctypes.byref(work), jacobi_svd))
                for name in ("Xgetrf", "Xpotrf", "Xgeqrf"):
                    device, host = size(), size()
                    d, h = ctypes.byref(device), ctypes.byref(host)
                    call = getattr(library, f"cusolverDn{name}_bufferSize")
                    if name == "Xgetrf":
                        status = call(handle, parameters, long(n), long(n), kind, pointer, long(n), kind, d, h)
                    elif name == "Xpotrf":
                        status = call(handle, parameters, 0, long(n), kind, pointer, long(n), kind, d, h)
                    else:
                        status = call(handle, parameters, long(n), long(n), kind, pointer, long(n), kind, pointer, kind, d, h)
                    say(call=name, args=[letter, n], answer=[device.value, host.value] if not status else f"status {status}")


if __name__ == "__main__":
    for part in (blas, pytorch, solver, fft):
        try:
            part()
        except Exception as error:
            say(call="failed", args=[part.__name__], answer=repr(error)[:300])
        say(call="time", args=[part.__name__], answer=round(time.time() - BEGAN, 1))
