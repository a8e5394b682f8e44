"""Run the cases of record_cases.py under other allocator settings, and keep the peaks that the GPU measured.

    python other_settings.py OUT_DIR [--only CASE,CASE]

What a replay of the default recording says for a setting is held against what the GPU then did
(crates/oomph-replay/tests/other_settings.rs). Rows are written to OUT_DIR/other_settings.jsonl, and a recording under the
default settings of each case beside them.
"""
import json, os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = ["accumulate", "accumulated_gradients", "checkpointed", "clones", "closure", "deep_unet", "eval_grad",
         "eval_nograd", "foreach", "frozen", "fused", "gan", "kv_cache", "logits", "lstm", "outputs_list", "streams",
         "big_temp", "gpt2_lengths", "llama_lengths", "t5_lengths", "vit_sizes", "mobilenet_eval"]
SETTINGS = ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4",
            "max_split_size_mb:128", "roundup_power2_divisions:8", "large_segment_size_mb:64",
            "expandable_segments:True,large_segment_size_mb:12"]
# Run once the model of the allocator was finished, under settings that it was not tried on before.
LATER_CASES = ["moe_tokens", "lstm_lengths", "unet_sizes", "t5_generate", "gpt2_accumulate"]
LATER_SETTINGS = ["", "expandable_segments:True", "max_split_size_mb:32", "max_split_size_mb:256", "roundup_power2_divisions:2",
                  "roundup_power2_divisions:16", "roundup_power2_divisions:[16:8,64:4,>:2]", "large_segment_size_mb:32",
                  "max_split_size_mb:96,max_non_split_rounding_mb:32"]


def lengths(count, low, high):
    """Lengths that jump about, the same in every run."""
    return [low + (i * 7919) % (high - low) for i in range(1, count + 1)]


def train(torch, keep, model, batches, **optim):
    optimizer = keep["optim"] = torch.optim.AdamW(model.parameters(), **optim)
    keep["model"] = model
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        out = model(**batch) if isinstance(batch, dict) else model(batch)
        loss = out.loss if hasattr(out, "loss") else out.float().square().mean()
        loss.backward()
        optimizer.step()


def ids(torch, vocab, batch, length):
    x = torch.randint(0, vocab, (batch, length), device="cuda")
    return dict(input_ids=x, labels=x)


def case_gpt2_lengths(torch, keep):
    import transformers as t
    model = t.GPT2LMHeadModel(t.GPT2Config(n_layer=6, n_embd=512, n_head=8)).cuda()
    train(torch, keep, model, [ids(torch, 50257, 4, n) for n in lengths(12, 64, 700)])


def case_llama_lengths(torch, keep):
    import transformers as t
    config = t.LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=12, vocab_size=32000)
    model = t.LlamaForCausalLM(config).cuda().bfloat16()
    train(torch, keep, model, [ids(torch, 32000, 3, n) for n in lengths(10, 100, 1500)])


def case_t5_lengths(torch, keep):
    import transformers as t
    model = t.T5ForConditionalGeneration(t.T5Config(d_model=512, d_ff=1024, num_layers=4, vocab_size=20000, decoder_start_token_id=0)).cuda()
    train(torch, keep, model, [ids(torch, 20000, 6, n) for n in lengths(12, 40, 500)])


def case_vit_sizes(torch, keep):
    import torchvision
    model = torchvision.models.convnext_tiny().cuda()
    train(torch, keep, model, [torch.randn(8, 3, n // 32 * 32, n // 32 * 32, device="cuda") for n in lengths(10, 96, 384)], fused=True)


def case_mobilenet_eval(torch, keep):
    import torchvision
    model = keep["model"] = torchvision.models.mobilenet_v3_large().cuda()
    train(torch, keep, model, [torch.randn(16, 3, 160, 160, device="cuda") for _ in range(3)])
    model.eval()
    with torch.no_grad():
        for n in lengths(8, 64, 512):
            model(torch.randn(24, 3, n, n, device="cuda"))


def case_moe_tokens(torch, keep):
    """A mixture of experts: as many tokens an expert as fall to it."""
    nn = torch.nn
    experts = nn.ModuleList([nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(8)]).cuda()
    gate = nn.Linear(512, 8).cuda()
    optimizer = keep["optim"] = torch.optim.AdamW([*experts.parameters(), *gate.parameters()])
    keep["model"] = experts
    for n in lengths(10, 3000, 12000):
        x = torch.randn(n, 512, device="cuda")
        share = torch.arange(8).double().add(1).mul(n).div(36).long().tolist()
        parts = torch.split(x[: sum(share)], share)
        optimizer.zero_grad()
        scores = gate(x).softmax(-1)
        out = torch.cat([expert(part) for expert, part in zip(experts, parts)]) * scores[: sum(share), :1]
        out.square().mean().backward()
        optimizer.step()


def case_lstm_lengths(torch, keep):
    model = torch.nn.LSTM(128, 384, num_layers=2, batch_first=True).cuda()
    optimizer = keep["optim"] = torch.optim.Adam(model.parameters())
    keep["model"] = model
    for n in lengths(10, 50, 600):
        optimizer.zero_grad()
        model(torch.randn(24, n, 128, device="cuda"))[0].square().mean().backward()
        optimizer.step()


def case_unet_sizes(torch, keep):
    nn = torch.nn
    down = nn.ModuleList([nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU()) for a, b in ((3, 32), (32, 64), (64, 128))]).cuda()
    up = nn.ModuleList([nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.SiLU()) for a, b in ((192, 64), (96, 32))]).cuda()
    optimizer = keep["optim"] = torch.optim.AdamW([*down.parameters(), *up.parameters()])
    keep["model"] = down
    for n in lengths(10, 96, 400):
        x, skips = torch.randn(4, 3, n // 8 * 8, n // 8 * 8, device="cuda"), []
        optimizer.zero_grad()
        for i, block in enumerate(down):
            x = block(x)
            skips.append(x)
            x = torch.nn.functional.max_pool2d(x, 2) if i < 2 else x
        for block, skip in zip(up, (skips[1], skips[0])):
            x = block(torch.cat([torch.nn.functional.interpolate(x, size=skip.shape[-2:]), skip], 1))
        x.square().mean().backward()
        optimizer.step()


def case_t5_generate(torch, keep):
    import transformers as t
    config = t.T5Config(d_model=512, d_ff=1024, num_layers=4, vocab_size=20000, decoder_start_token_id=0)
    model = keep["model"] = t.T5ForConditionalGeneration(config).cuda().eval()
    with torch.no_grad():
        for n in lengths(4, 60, 300):
            x = torch.randint(3, 20000, (4, n), device="cuda")
            model.generate(x, max_new_tokens=24, min_new_tokens=24, num_beams=3, do_sample=False)


def case_gpt2_accumulate(torch, keep):
    """Micro-batches of different lengths, their gradients added up."""
    import transformers as t
    model = keep["model"] = t.GPT2LMHeadModel(t.GPT2Config(n_layer=4, n_embd=384, n_head=6)).cuda()
    optimizer = keep["optim"] = torch.optim.AdamW(model.parameters(), fused=True)
    for round_ in range(3):
        for n in lengths(4, 50 + 100 * round_, 500 + 100 * round_):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(**ids(torch, 50257, 3, n)).loss / 4
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def child(folder, case, conf):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = conf
    sys.path.insert(0, HERE)
    import record_cases, torch

    torch.cuda.init()
    torch.manual_seed(0)
    if not conf:
        record_cases.record(torch)
    keep = {}
    (globals().get("case_" + case) or getattr(record_cases, "case_" + case))(torch, keep)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    if not conf:
        torch.cuda.memory._dump_snapshot(os.path.join(folder, case + ".pickle"))
    print("JSON " + json.dumps(dict(
        case=case, conf=conf, torch=torch.__version__, gpu=torch.cuda.get_device_name(),
        allocated=stats["allocated_bytes.all.peak"], reserved=stats["reserved_bytes.all.peak"],
        allocations=stats["allocation.all.allocated"], requested=stats["requested_bytes.all.allocated"],
        retries=stats["num_alloc_retries"])))


def main():
    folder = sys.argv[1]
    if len(sys.argv) == 4 and sys.argv[2] != "--only":
        child(folder, sys.argv[2], sys.argv[3])
        return
    os.makedirs(folder, exist_ok=True)

    def run(job):
        case, conf = job
        start = time.time()
        p = subprocess.run([sys.executable, __file__, folder, case, conf], capture_output=True, text=True, timeout=300)
        lines = [l[5:] for l in p.stdout.splitlines() if l.startswith("JSON ")]
        return job, lines, time.time() - start, p.stderr[-500:]

    only = sys.argv[3].split(",") if sys.argv[2:3] == ["--only"] else None
    jobs = [(case, conf) for case in CASES for conf in SETTINGS] + [(case, conf) for case in LATER_CASES for conf in LATER_SETTINGS]
    jobs = [job for job in jobs if only is None or job[0] in only]
    with ThreadPoolExecutor(8) as workers, open(os.path.join(folder, "other_settings.jsonl"), "w") as out:
        for job, lines, took, err in workers.map(run, jobs):
            if not lines:
                print(job, "FAILED", f"{took:.1f} s", err, flush=True)
            out.writelines(line + "\n" for line in lines)


if __name__ == "__main__":
    main()
