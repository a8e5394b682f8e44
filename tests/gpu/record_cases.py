"""Record small, real PyTorch programs on a real GPU, one process a case, with the truth beside each.

    python record_cases.py OUT_DIR               run every case
    python record_cases.py OUT_DIR --only A,B    run these
    python record_cases.py OUT_DIR CASE          run one, in this process (used by the parent)

Each case writes CASE.pickle (the snapshot) and one JSON line to truth.jsonl: what the allocator really
did, and the storage addresses of parameters, gradients and optimizer state that were alive at the end, so that
oomph's inference of kinds can be scored. The cases are chosen to differ from the ones oomph was written against.
"""
import gc, json, os, pickle, subprocess, sys, time

MIB = 2**20


def net(torch, width=512, depth=6, inputs=256, outputs=64):
    nn = torch.nn
    layers = [nn.Linear(inputs, width), nn.GELU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, outputs)).cuda()


class TinyLM:
    """Built lazily so that importing this file needs no torch."""

    @staticmethod
    def make(torch, vocab=32000, dim=256, heads=4, layers=3, seq=256):
        nn = torch.nn

        class LM(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(vocab, dim)
                block = nn.TransformerEncoderLayer(dim, heads, 4 * dim, batch_first=True, dropout=0.0)
                self.body = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
                self.head = nn.Linear(dim, vocab, bias=False)

            def forward(self, ids):
                return self.head(self.body(self.embed(ids)))

        return LM().cuda()


def loop(torch, model, batch, optimizer, steps=3, loss_fn=None, after=None):
    for _ in range(steps):
        x, y = batch()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        if after:
            after(loss)
    return loss


def mlp_batch(torch, n=256, inputs=256, outputs=64):
    return lambda: (torch.randn(n, inputs, device="cuda"), torch.randint(0, outputs, (n,), device="cuda"))


def case_ring(torch, keep):
    m = keep["model"] = net(torch); o = keep["optim"] = torch.optim.Adam(m.parameters())
    loop(torch, m, mlp_batch(torch), o, 6, torch.nn.functional.cross_entropy)


def case_late(torch, keep):
    """Recording switched on only after two steps."""
    m = keep["model"] = net(torch); o = keep["optim"] = torch.optim.Adam(m.parameters())
    loop(torch, m, mlp_batch(torch), o, 2, torch.nn.functional.cross_entropy)
    record(torch)
    loop(torch, m, mlp_batch(torch), o, 3, torch.nn.functional.cross_entropy)


def case_accumulate(torch, keep):
    """total_loss += loss: the classic."""
    m = keep["model"] = net(torch, width=1024); x, y = mlp_batch(torch, 2048)()
    total_loss = 0
    for _ in range(8):
        loss = torch.nn.functional.cross_entropy(m(x), y)
        total_loss = total_loss + loss
    keep["total"] = total_loss


def case_outputs_list(torch, keep):
    """Training that is right, except that predictions (with their graph) are collected for a metric."""
    m = keep["model"] = net(torch, width=1024); o = keep["optim"] = torch.optim.SGD(m.parameters(), lr=0.1)
    outputs = keep["outputs"] = []
    for _ in range(6):
        x, y = mlp_batch(torch, 2048)()
        o.zero_grad()
        out = m(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        loss.backward()
        o.step()
        outputs.append(m(x))


def case_eval_grad(torch, keep):
    m = keep["model"] = net(torch, width=1024, depth=12).eval()
    for _ in range(6):
        x, _ = mlp_batch(torch, 4096)()
        pred = m(x).argmax(-1)
    keep["pred"] = pred


def case_eval_nograd(torch, keep):
    m = keep["model"] = net(torch, width=1024, depth=12).eval()
    with torch.no_grad():
        for _ in range(6):
            x, _ = mlp_batch(torch, 4096)()
            pred = m(x).argmax(-1)
    keep["pred"] = pred


def lm_step(torch, keep, vocab, batch=8, seq=256, steps=3, optim="AdamW", **kw):
    m = keep["model"] = TinyLM.make(torch, vocab=vocab); o = keep["optim"] = getattr(torch.optim, optim)(m.parameters(), **kw)

    def data():
        ids = torch.randint(0, vocab, (batch, seq), device="cuda")
        return ids, ids

    def loss(logits, ids):
        return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, vocab), ids[:, 1:].reshape(-1))

    loop(torch, m, data, o, steps, loss)


def case_logits(torch, keep):
    lm_step(torch, keep, 50000, 16)


def case_foreach(torch, keep):
    m = keep["model"] = net(torch, width=3072, depth=8); o = keep["optim"] = torch.optim.AdamW(m.parameters())
    loop(torch, m, mlp_batch(torch, 32), o, 3, torch.nn.functional.cross_entropy)


def case_fused(torch, keep):
    m = keep["model"] = net(torch, width=3072, depth=8); o = keep["optim"] = torch.optim.AdamW(m.parameters(), fused=True)
    loop(torch, m, mlp_batch(torch, 32), o, 3, torch.nn.functional.cross_entropy)


def case_clones(torch, keep):
    m = keep["model"] = net(torch); x = torch.randn(8 * MIB, device="cuda")
    copies = keep["copies"] = [x.clone() for _ in range(12)]
    o = keep["optim"] = torch.optim.SGD(m.parameters(), lr=0.1)
    loop(torch, m, mlp_batch(torch), o, 3, torch.nn.functional.cross_entropy)


def case_big_temp(torch, keep):
    """Pairwise distances by broadcasting: one temporary makes the peak."""
    a = torch.randn(2000, 64, device="cuda"); b = torch.randn(2000, 64, device="cuda")
    for _ in range(3):
        d = ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1).sqrt()
        best = d.argmin(-1)
        del d
    keep["best"] = best


def case_thrash(torch, keep):
    m = keep["model"] = net(torch, width=1024); o = keep["optim"] = torch.optim.SGD(m.parameters(), lr=0.1)
    for _ in range(6):
        loop(torch, m, mlp_batch(torch, 4096), o, 1, torch.nn.functional.cross_entropy)
        gc.collect()
        torch.cuda.empty_cache()


def case_streams(torch, keep):
    side = torch.cuda.Stream()
    m = keep["model"] = net(torch)
    for _ in range(5):
        with torch.cuda.stream(side):
            x = torch.randn(64 * MIB // 4, device="cuda")
            y = x * 2
        torch.cuda.current_stream().wait_stream(side)
        y.record_stream(torch.cuda.current_stream())
        z = (y + 1).sum()
        del x, y
        big = torch.randn(128 * MIB // 4, device="cuda"); del big
    keep["z"] = z


def case_cudagraph(torch, keep):
    m = keep["model"] = net(torch, width=1024).eval()
    static = keep["static"] = torch.randn(4096, 256, device="cuda")
    with torch.no_grad():
        side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2): m(static)
        torch.cuda.current_stream().wait_stream(side)
        g = keep["graph"] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            keep["out"] = m(static)
        for _ in range(3): g.replay()
        for _ in range(3): y = m(torch.randn(4096, 256, device="cuda"))


def case_fragment_oom(torch, keep):
    """Growing requests beside small ones that stay; then one large request, which fits after the cache is emptied."""
    torch.cuda.set_per_process_memory_fraction(900 * MIB / torch.cuda.mem_get_info()[1])
    cache = keep["cache"] = []
    for step in range(12):
        tmp = [torch.randn((12 + 5 * step) * MIB // 4, device="cuda") for _ in range(2)]
        cache.append(torch.randn(3 * MIB // 4, device="cuda"))
        del tmp
    torch.randn(400 * MIB // 4, device="cuda")


def case_real_oom(torch, keep):
    torch.cuda.set_per_process_memory_fraction(1200 * MIB / torch.cuda.mem_get_info()[1])
    lm_step(torch, keep, 50000, 64)


def case_expandable_oom(torch, keep):
    torch.cuda.set_per_process_memory_fraction(1200 * MIB / torch.cuda.mem_get_info()[1])
    lm_step(torch, keep, 50000, 24, steps=4)


def case_find_batch(torch, keep):
    """The user's own search for a batch size: every OOM caught and retried with half."""
    torch.cuda.set_per_process_memory_fraction(700 * MIB / torch.cuda.mem_get_info()[1])
    m = keep["model"] = net(torch, width=1024); o = keep["optim"] = torch.optim.SGD(m.parameters(), lr=0.1)
    n = 65536
    while n:
        try:
            loop(torch, m, mlp_batch(torch, n), o, 2, torch.nn.functional.cross_entropy)
            break
        except torch.OutOfMemoryError:
            n //= 2
        gc.collect()


def case_conv_fallback(torch, keep):
    """cuDNN asks for workspaces that do not fit and falls back: not the user's problem."""
    torch.cuda.set_per_process_memory_fraction(420 * MIB / torch.cuda.mem_get_info()[1])
    nn = torch.nn
    torch.backends.cudnn.benchmark = True
    m = keep["model"] = nn.Sequential(*[nn.Conv2d(64, 64, 3, padding=1) for _ in range(4)]).cuda()
    o = keep["optim"] = torch.optim.SGD(m.parameters(), lr=0.1)
    for _ in range(3):
        o.zero_grad(); m(torch.randn(8, 64, 96, 96, device="cuda")).mean().backward(); o.step()


def case_checkpointed(torch, keep):
    from torch.utils.checkpoint import checkpoint
    m = keep["model"] = net(torch, width=1024, depth=8); o = keep["optim"] = torch.optim.AdamW(m.parameters())
    for _ in range(3):
        for micro in range(2):
            x, y = mlp_batch(torch, 2048)()
            for layer in m: x = checkpoint(layer, x, use_reentrant=False)
            (torch.nn.functional.cross_entropy(x, y) / 2).backward()
        o.step(); o.zero_grad()


def case_frozen(torch, keep):
    """A frozen backbone with a small trained head, in bf16 autocast."""
    body = keep["body"] = net(torch, width=1024, depth=8, outputs=1024).requires_grad_(False)
    head = keep["model"] = torch.nn.Linear(1024, 64).cuda(); o = keep["optim"] = torch.optim.Adam(head.parameters())
    for _ in range(3):
        x, y = mlp_batch(torch, 1024)()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(head(body(x)), y)
        o.zero_grad(); loss.backward(); o.step()


def case_lstm(torch, keep):
    m = keep["model"] = torch.nn.LSTM(128, 256, 2, batch_first=True).cuda(); o = keep["optim"] = torch.optim.Adam(m.parameters(), foreach=False)
    for _ in range(3):
        out, _ = m(torch.randn(32, 100, 128, device="cuda"))
        o.zero_grad(); out.square().mean().backward(); o.step()


def case_cpp_stacks(torch, keep):
    m = keep["model"] = net(torch, depth=2); o = keep["optim"] = torch.optim.Adam(m.parameters())
    loop(torch, m, mlp_batch(torch), o, 2, torch.nn.functional.cross_entropy)


def case_plain(torch, keep):
    m = keep["model"] = net(torch); o = keep["optim"] = torch.optim.Adam(m.parameters())
    loop(torch, m, mlp_batch(torch), o, 3, torch.nn.functional.cross_entropy)


def case_annotated(torch, keep):
    m = keep["model"] = net(torch); o = keep["optim"] = torch.optim.Adam(m.parameters())
    for i in range(3):
        with torch.profiler.record_function(f"my step {i}"):
            torch.cuda.memory._set_memory_metadata(f"step {i}") if hasattr(torch.cuda.memory, "_set_memory_metadata") else None
            loop(torch, m, mlp_batch(torch), o, 1, torch.nn.functional.cross_entropy)


def case_pinned_segments(torch, keep):
    """max_split_size_mb in force, mixed sizes."""
    for i in range(6):
        a = [torch.randn((5 + 37 * j) * MIB // 4, device="cuda") for j in range(6)]
        keep[f"k{i}"] = a[i % 6]
        del a


def case_compiled(torch, keep):
    """torch.compile: stacks of generated code, activations saved by a custom autograd function."""
    m = keep["model"] = net(torch, width=1024, depth=6); o = keep["optim"] = torch.optim.AdamW(m.parameters())
    loop(torch, torch.compile(m), mlp_batch(torch, 8192), o, 4, torch.nn.functional.cross_entropy)


def case_closure(torch, keep):
    """LBFGS: the whole step runs inside optimizer.step(closure)."""
    m = keep["model"] = net(torch, width=512, depth=4); o = keep["optim"] = torch.optim.LBFGS(m.parameters(), max_iter=3, history_size=4)
    x, y = mlp_batch(torch, 8192)()

    def closure():
        o.zero_grad()
        loss = torch.nn.functional.cross_entropy(m(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        o.step(closure)


def case_gan(torch, keep):
    """Two optimizers; the generator's losses are kept with their graphs."""
    g = keep["model"] = net(torch, width=1024, outputs=256); d = net(torch, width=512, outputs=1)
    og = keep["optim"] = torch.optim.Adam(g.parameters()); od = torch.optim.Adam(d.parameters())
    keep["d"], keep["od"], history = d, od, []
    for _ in range(8):
        z = torch.randn(2048, 256, device="cuda")
        od.zero_grad(); d(g(z).detach()).mean().backward(); od.step()
        og.zero_grad(); loss = -d(g(z)).mean(); loss.backward(); og.step()
        history.append(-d(g(z)).mean())
    keep["history"] = history


def case_accumulated_gradients(torch, keep):
    m = keep["model"] = net(torch, width=1024); o = keep["optim"] = torch.optim.AdamW(m.parameters())
    for _ in range(4):
        for _ in range(4):
            x, y = mlp_batch(torch, 2048)()
            (torch.nn.functional.cross_entropy(m(x), y) / 4).backward()
        o.step(); o.zero_grad()


def case_kv_cache(torch, keep):
    """Inference with preallocated caches, one a layer, all of one size."""
    m = keep["model"] = net(torch, width=1024, depth=8).eval()
    keep["caches"] = [torch.zeros(16 * MIB // 4, device="cuda") for _ in range(8)]
    with torch.inference_mode():
        for i in range(10):
            m(torch.randn(512, 256, device="cuda"))


def case_expandable_unmap(torch, keep):
    """Expandable segments that grow, are emptied, and grow again."""
    m = keep["model"] = net(torch, width=1024)
    for i in range(4):
        with torch.no_grad():
            y = m(torch.randn(4096 * (i + 1), 256, device="cuda"))
        keep[f"small{i}"] = torch.randn(3 * MIB // 4, device="cuda")
        del y
        torch.cuda.empty_cache()


def case_mem_pool(torch, keep):
    pool = keep["pool"] = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        keep["inside"] = torch.randn(64 * MIB // 4, device="cuda")
        dropped = torch.randn(96 * MIB // 4, device="cuda")
    del dropped
    m = keep["model"] = net(torch); o = keep["optim"] = torch.optim.SGD(m.parameters(), lr=0.1)
    loop(torch, m, mlp_batch(torch), o, 3, torch.nn.functional.cross_entropy)


def case_handler_after_oom(torch, keep):
    """Dies of an out-of-memory; the handler lets go of everything and allocates a little."""
    torch.cuda.set_per_process_memory_fraction(900 * MIB / torch.cuda.mem_get_info()[1])

    def work():
        m = net(torch, width=2048); o = torch.optim.AdamW(m.parameters())
        for n in (1024, 2048, 65536):
            loop(torch, m, mlp_batch(torch, n), o, 1, torch.nn.functional.cross_entropy)

    try:
        work()
    except torch.OutOfMemoryError:
        pass
    gc.collect()
    keep["report"] = torch.zeros(1000, device="cuda")


def case_conv_fallback_cpp(torch, keep):
    """As conv_fallback, recorded with C++ frames, which is PyTorch's default."""
    case_conv_fallback(torch, keep)


def case_deep_unet(torch, keep):
    """Convolutions, group norm, skip connections, channels last, bf16 autocast, fused AdamW."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1))
            self.skip = nn.Conv2d(i, o, 1)

        def forward(self, x):
            return self.body(x) + self.skip(x)

    m = keep["model"] = nn.Sequential(Block(4, 64), Block(64, 128), Block(128, 64), nn.Conv2d(64, 4, 1)).cuda().to(memory_format=torch.channels_last)
    o = keep["optim"] = torch.optim.AdamW(m.parameters(), fused=True)
    for _ in range(3):
        x = torch.randn(8, 4, 64, 64, device="cuda").to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = (m(x) - x).square().mean()
        o.zero_grad(); loss.backward(); o.step()


RECORD = {  # arguments of _record_memory_history that differ from the usual
    "ring": dict(max_entries=400), "late": None, "cpp_stacks": dict(stacks="all"), "conv_fallback_cpp": dict(stacks="all"),
    "plain_context_alloc": dict(context="alloc"), "plain_context_state": dict(context="state"), "plain_context_none": dict(context=None),
    "plain_state": dict(enabled="state"), "annotated": dict(global_record_annotations=True),
}
CONF = {"expandable_oom": "expandable_segments:True", "expandable_unmap": "expandable_segments:True", "pinned_segments": "max_split_size_mb:64", "plain_roundup": "roundup_power2_divisions:[1:2,64:4,>:8]"}
ALIAS = {"plain_context_alloc": "plain", "plain_context_state": "plain", "plain_context_none": "plain", "plain_state": "plain", "plain_roundup": "plain", "plain_observer_oom": "real_oom"}


def record(torch, **kw):
    args = dict(max_entries=2_000_000, stacks="python", context="all")
    args.update(kw)
    torch.cuda.memory._record_memory_history(**args)


def addresses(keep):
    model, optim = keep.get("model"), keep.get("optim")
    out = {}
    for m in (keep.get("body"), model):
        if m is not None:
            for p in m.parameters():
                out[p.untyped_storage().data_ptr()] = "parameter"
                if p.grad is not None:
                    out[p.grad.untyped_storage().data_ptr()] = "gradient"
    if optim is not None:
        for state in optim.state.values():
            for v in state.values():
                if hasattr(v, "is_cuda") and v.is_cuda:
                    out[v.untyped_storage().data_ptr()] = "optimizer_state"
    return out


def child(folder, name):
    if name in CONF:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = CONF[name]
    import torch
    torch.cuda.init(); torch.manual_seed(0)
    path = os.path.join(folder, name + ".pickle")
    how = RECORD.get(name, {})
    if how is not None:
        record(torch, **how)
    if name == "plain_observer_oom":
        def observer(device, alloc, total, free):
            with open(path, "wb") as f:
                pickle.dump(torch.cuda.memory._snapshot(), f)
        torch._C._cuda_attach_out_of_memory_observer(observer)
    keep, oom = {}, None
    try:
        globals()["case_" + ALIAS.get(name, name)](torch, keep)
    except torch.OutOfMemoryError as e:
        oom = str(e)[:700]
    torch.cuda.synchronize()
    s = torch.cuda.memory_stats()
    kinds = addresses(keep)
    if name != "plain_observer_oom":
        torch.cuda.memory._dump_snapshot(path)
    if name == "plain":
        snap = torch.cuda.memory._snapshot()
        pickle.dump(torch.cuda.memory.memory_snapshot(), open(os.path.join(folder, "plain_segments_only.pickle"), "wb"))
        for p in (2, 3, 5):
            pickle.dump(snap, open(os.path.join(folder, f"plain_protocol{p}.pickle"), "wb"), protocol=p)
        json.dump(snap, open(os.path.join(folder, "plain_json.json"), "w"))
        from torch.cuda import _memory_viz
        open(os.path.join(folder, "plain_viz.html"), "w").write(_memory_viz.trace_plot(snap))
    keys = [k for k in s if k in ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free") or k.endswith((".all.peak", ".all.current"))]
    print("JSON " + json.dumps(dict(case=name, torch=torch.__version__, gpu=torch.cuda.get_device_name(), conf=CONF.get(name, ""), oom=oom, stats={k: s[k] for k in keys}, kinds=kinds)))


if __name__ == "__main__":
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    if len(sys.argv) == 3:
        child(folder, sys.argv[2])
        sys.exit()
    names = [k[5:] for k in list(globals()) if k.startswith("case_")] + list(ALIAS)
    if sys.argv[2:3] == ["--only"]:
        names = sys.argv[3].split(",")
    from concurrent.futures import ThreadPoolExecutor

    def run(name):
        t = time.time()
        p = subprocess.run([sys.executable, __file__, folder, name], capture_output=True, text=True, timeout=240)
        lines = [l[5:] for l in p.stdout.splitlines() if l.startswith("JSON ")]
        return name, lines, time.time() - t, p.stderr[-800:]

    with ThreadPoolExecutor(4) as pool, open(os.path.join(folder, "truth.jsonl"), "w") as out:
        for name, lines, took, err in pool.map(run, names):
            print(name, "ok" if lines else "FAILED", f"{took:.1f} s", "" if lines else err, flush=True)
            for line in lines:
                out.write(line + "\n")
