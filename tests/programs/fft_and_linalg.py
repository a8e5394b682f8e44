"""Signal processing and linear algebra on the GPU: FFT, solve, SVD, Cholesky, sort, cumsum, top-k."""
import argparse

import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda")
    window = torch.hann_window(1024, device=device)

    for step in range(args.steps):
        signal = torch.randn(args.batch_size, 65536, device=device)

        # Low-pass by zeroing the upper half of the spectrum, then a spectrogram.
        spectrum = torch.fft.rfft(signal)
        spectrum[:, spectrum.size(1) // 2 :] = 0
        smooth = torch.fft.irfft(spectrum, n=signal.size(1))
        spectrogram = torch.stft(smooth, 1024, hop_length=512, window=window, return_complex=True).abs()

        # Ridge regression through the normal equations, and a batch of small systems.
        x, y = signal[:, :2048].T.contiguous(), smooth[:8, :2048].T
        gram = x.T @ x + 10.0 * torch.eye(x.size(1), device=device)
        weights = torch.linalg.solve(gram, x.T @ y)
        residual = torch.linalg.norm(x @ weights - y)
        factor = torch.linalg.cholesky(gram)
        small = torch.randn(512, 32, 32, device=device) + 32 * torch.eye(32, device=device)
        inverse = torch.linalg.inv(small)

        # The leading directions of the signal.
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        energy = (s**2).cumsum(0) / (s**2).sum()

        ordered, order = signal.sort(dim=1)
        largest = spectrogram.flatten(1).topk(100, dim=1).values
        median = ordered.gather(1, order.argsort(dim=1))[:, 0]
        print(f"step {step} residual {residual.item():.2f} energy {energy[len(s) // 2].item():.2f} "
              f"top {largest.mean().item():.2f} {median.mean().item():.2f} {inverse.norm().item():.2f} "
              f"{factor.diagonal().log().sum().item():.2f} {u.shape[1]}x{vh.shape[1]}")

    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
