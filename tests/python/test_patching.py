"""The change that `oomph explain --fix` offers for each cause: the source before and after, and where none is offered.

``#@`` marks the line that is named, ``#+`` others that are. What a change does to memory is not asked here.
"""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import oomph
import pytest
from oomph.patching.child import answer
from oomph.patching.patches import CAUSES, changes
from oomph.patching.reading import Request
from oomph.patching.source import NoPatch

PACKAGE = pathlib.Path(oomph.__file__).parent.parent

CHANGES = {
    "a step that training and validation share": (
        "no_grad_missing",
        None,
        """
        import torch

        def shared_step(self, batch):
            return loss_of(self.net(batch))  #@

        def training_step(self, batch, index):
            return self.shared_step(batch)

        def validate(self):
            for batch in self.loader:
                losses.append(self.shared_step(batch))
        """,
        """
        import torch

        def shared_step(self, batch):
            return loss_of(self.net(batch))

        def training_step(self, batch, index):
            return self.shared_step(batch)

        @torch.no_grad()
        def validate(self):
            for batch in self.loader:
                losses.append(self.shared_step(batch))
        """,
    ),
    "a part of a step that training and validation share, called twice in one loop": (
        "no_grad_missing",
        None,
        """
        import torch

        def shared(x):
            h = backbone(x)  #@
            return head(h).mean()

        for x in train:
            loss = shared(x)
            loss.backward()
            optimizer.step()
        for x in val:
            total += shared(x)
            other += shared(x + 1)
        """,
        """
        import torch

        def shared(x):
            h = backbone(x)
            return head(h).mean()

        for x in train:
            loss = shared(x)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for x in val:
                total += shared(x)
                other += shared(x + 1)
        """,
    ),
    "the weights of a moving average are numbers": (
        "graph_kept",
        "ema",
        """
        for x in data:
            loss.backward()
            ema = s.smoothing * ema + (1 - s.smoothing) * loss  #@
        """,
        """
        for x in data:
            loss.backward()
            ema = s.smoothing * ema + (1 - s.smoothing) * loss.item()
        """,
    ),
    "a container that is made on the line that is named": (
        "tensors_kept",
        "agent.memory",
        """
        class Agent:
            def __init__(self):
                self.memory = deque()  #@

        agent.memory.append((observation, action))
        """,
        """
        class Agent:
            def __init__(self):
                self.memory = deque()

        agent.memory.append((observation.cpu(), action.cpu()))
        """,
    ),
    "an evaluation gets a decorator": (
        "no_grad_missing",
        None,
        """
        import torch

        def evaluate(model, loader):
            model.eval()
            total = 0
            for x, y in loader:
                loss = criterion(model(x), y)  #@
                total += loss
            return total
        """,
        """
        import torch

        @torch.no_grad()
        def evaluate(model, loader):
            model.eval()
            total = 0
            for x, y in loader:
                loss = criterion(model(x), y)
                total += loss
            return total
        """,
    ),
    "the decorator is nearest to the function, by the file's own name for it": (
        "no_grad_missing",
        None,
        """
        from torch import nn, no_grad

        class Net:
            @staticmethod
            def predict(model, x):
                return model(x)  #@
        """,
        """
        from torch import nn, no_grad

        class Net:
            @staticmethod
            @no_grad()
            def predict(model, x):
                return model(x)
        """,
    ),
    "torch is imported where nothing else names it": (
        "no_grad_missing",
        None,
        '''
        """Embeds."""
        from transformers import AutoModel

        def embed(model, batches):
            return [model(**batch).pooler_output for batch in batches]  #@
        ''',
        '''
        """Embeds."""
        from transformers import AutoModel
        import torch

        @torch.no_grad()
        def embed(model, batches):
            return [model(**batch).pooler_output for batch in batches]
        ''',
    ),
    "a loop at the top of a file is wrapped, strings and comments as they were": (
        "no_grad_missing",
        "outputs",
        '''
        import torch
        outputs = []
        for x in data:  # all of it
            text = """one
        two"""

            outputs.append(
                model(x)  #@
            )
        print(len(outputs))
        ''',
        '''
        import torch
        outputs = []
        with torch.no_grad():
            for x in data:  # all of it
                text = """one
        two"""

                outputs.append(
                    model(x)
                )
        print(len(outputs))
        ''',
    ),
    "a teacher in a training step: that statement alone": (
        "no_grad_missing",
        None,
        """
        import torch as t

        def train(student, teacher, loader):
            for x in loader:
                target = teacher(x)  #@
                loss = F.mse_loss(student(x), target)
                loss.backward()
                optimizer.step()
        """,
        """
        import torch as t

        def train(student, teacher, loader):
            for x in loader:
                with t.no_grad():
                    target = teacher(x)
                loss = F.mse_loss(student(x), target)
                loss.backward()
                optimizer.step()
        """,
    ),
    "the validation loop inside a function that trains": (
        "no_grad_missing",
        "total",
        """
        import torch

        def main():
            for epoch in range(3):
                for x, y in train_loader:
                    loss = criterion(model(x), y)
                    loss.backward()
                    optimizer.step()
                total = 0
                for x, y in val_loader:
                    total += criterion(model(x), y)  #@
                print(total)
        """,
        """
        import torch

        def main():
            for epoch in range(3):
                for x, y in train_loader:
                    loss = criterion(model(x), y)
                    loss.backward()
                    optimizer.step()
                total = 0
                with torch.no_grad():
                    for x, y in val_loader:
                        total += criterion(model(x), y)
                print(total)
        """,
    ),
    "Lightning's training_step: the frozen model's statement": (
        "no_grad_missing",
        None,
        """
        import torch

        class Module(L.LightningModule):
            def training_step(self, batch, index):
                features = self.backbone(batch)  #@
                return self.head(features).mean()
        """,
        """
        import torch

        class Module(L.LightningModule):
            def training_step(self, batch, index):
                with torch.no_grad():
                    features = self.backbone(batch)
                return self.head(features).mean()
        """,
    ),
    "Lightning's validation_step": (
        "no_grad_missing",
        None,
        """
        import torch

        class Module(L.LightningModule):
            def validation_step(self, batch, index):
                self.outputs.append(self.net(batch))  #@
        """,
        """
        import torch

        class Module(L.LightningModule):
            @torch.no_grad()
            def validation_step(self, batch, index):
                self.outputs.append(self.net(batch))
        """,
    ),
    "a line in a model's forward leads to the call of it": (
        "no_grad_missing",
        None,
        """
        import torch

        class Net(nn.Module):
            def forward(self, x):
                return self.layer(x)  #@

        def extract(net, batches):
            return [net(x) for x in batches]  #+
        """,
        """
        import torch

        class Net(nn.Module):
            def forward(self, x):
                return self.layer(x)

        @torch.no_grad()
        def extract(net, batches):
            return [net(x) for x in batches]
        """,
    ),
    "a sum of losses": (
        "graph_kept",
        "total",
        """
        def train():
            total = 0.0
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                total += loss  #@ of all batches
            return total / len(loader)
        """,
        """
        def train():
            total = 0.0
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                total += loss.item()  # of all batches
            return total / len(loader)
        """,
    ),
    "a sum of losses times sizes": (
        "graph_kept",
        "total",
        """
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            total = total + loss * x.size(0)  #@
        """,
        """
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            total = total + loss.item() * x.size(0)
        """,
    ),
    "a sum that is asked for its item later stays a tensor": (
        "graph_kept",
        "total",
        """
        def train():
            total = 0.0
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                total += loss  #@
            return total.item()
        """,
        """
        def train():
            total = 0.0
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                total += loss.detach()
            return total.item()
        """,
    ),
    "a running average": (
        "graph_kept",
        "average",
        """
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            average = 0.9 * average + 0.1 * loss  #@
        """,
        """
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            average = 0.9 * average + 0.1 * loss.item()
        """,
    ),
    "a history of losses": (
        "graph_kept",
        "history",
        """
        history = []
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            history.append(loss)  #@
        print(sum(history) / len(history))
        """,
        """
        history = []
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            history.append(loss.item())
        print(sum(history) / len(history))
        """,
    ),
    "a history that is stacked": (
        "graph_kept",
        "history",
        """
        history = []
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            history.append(loss)  #@
        print(torch.stack(history).mean())
        """,
        """
        history = []
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            history.append(loss.detach())
        print(torch.stack(history).mean())
        """,
    ),
    "a record of several things": (
        "graph_kept",
        "log",
        """
        for step, x in enumerate(loader):
            output = model(x)
            loss = output.mean()
            loss.backward()
            log.append({"step": step, "loss": loss, "output": output, "lr": 0.1})  #@
        """,
        """
        for step, x in enumerate(loader):
            output = model(x)
            loss = output.mean()
            loss.backward()
            log.append({"step": step, "loss": loss.item(), "output": output.detach().cpu(), "lr": 0.1})
        """,
    ),
    "outputs in a dict of lists": (
        "graph_kept",
        "results",
        """
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            results["loss"].append(loss)  #@
        """,
        """
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            results["loss"].append(loss.item())
        """,
    ),
    "the line that makes it leads to the one that keeps it": (
        "graph_kept",
        "history",
        """
        def run(history):
            for x in loader:
                loss = model(x).mean()  #@
                loss.backward()
                history.append(loss)
        """,
        """
        def run(history):
            for x in loader:
                loss = model(x).mean()
                loss.backward()
                history.append(loss.item())
        """,
    ),
    "the outputs of the round before": (
        "graph_kept",
        "previous",
        """
        for x in loader:
            output = model(x, previous)
            output.mean().backward()
            previous = output  #@
        """,
        """
        for x in loader:
            output = model(x, previous)
            output.mean().backward()
            previous = output.detach()
        """,
    ),
    "a meter's caller": (
        "graph_kept",
        "meter",
        """
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            meter.update(loss, x.size(0))  #@
        """,
        """
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            meter.update(loss.item(), x.size(0))
        """,
    ),
    "an average that begins with the first loss": (
        "graph_kept",
        "average",
        """
        for x in loader:
            loss = model(x).mean()
            average = loss if average is None else 0.98 * average + 0.02 * loss  #@
            loss.backward()
        """,
        """
        for x in loader:
            loss = model(x).mean()
            average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
            loss.backward()
        """,
    ),
    "a hook that makes its lists": (
        "graph_kept",
        "activations",
        """
        def save(name):
            def hook(module, inputs, output):
                activations.setdefault(name, []).append(dict(name=name, output=output))  #@
            return hook
        """,
        """
        def save(name):
            def hook(module, inputs, output):
                activations.setdefault(name, []).append(dict(name=name, output=output.detach().cpu()))
            return hook
        """,
    ),
    "outputs that are joined round by round": (
        "tensors_kept",
        "predictions",
        """
        predictions = torch.empty(0)
        for x in loader:
            predictions = torch.cat([predictions, model(x)])  #@
        """,
        """
        predictions = torch.empty(0)
        for x in loader:
            predictions = torch.cat([predictions, model(x).cpu()])
        """,
    ),
    "an attribute": (
        "graph_kept",
        "self.last",
        """
        class Trainer:
            def step(self, x):
                out = self.model(x)
                self.last = out  #@
                out.mean().backward()
        """,
        """
        class Trainer:
            def step(self, x):
                out = self.model(x)
                self.last = out.detach()
                out.mean().backward()
        """,
    ),
    "a meter that may be given numbers as well": (
        "graph_kept",
        "self.sum",
        """
        class AverageMeter:
            def update(self, value, n=1):
                self.sum += value * n  #@
                self.count += n
        """,
        """
        class AverageMeter:
            def update(self, value, n=1):
                self.sum += float(value) * n
                self.count += n
        """,
    ),
    "a hook": (
        "graph_kept",
        "features",
        """
        features = []

        def hook(module, inputs, output):
            features.append(output)  #@

        model.layer.register_forward_hook(hook)
        """,
        """
        features = []

        def hook(module, inputs, output):
            features.append(output.detach().cpu())

        model.layer.register_forward_hook(hook)
        """,
    ),
    "a hidden state that goes on": (
        "graph_kept",
        "h",
        """
        h = torch.zeros(4, 8)
        for x in sequence:
            h = cell(x, h)  #@
            loss = head(h).mean()
            loss.backward(retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()
        """,
        """
        h = torch.zeros(4, 8)
        for x in sequence:
            h = cell(x, h)
            loss = head(h).mean()
            loss.backward(retain_graph=True)
            optimizer.step()
            h = h.detach()
            optimizer.zero_grad()
        """,
    ),
    "both states of an LSTM": (
        "graph_kept",
        "h",
        """
        def train(lstm, sequence):
            h, c = start()
            for x in sequence:
                out, (h, c) = lstm(x, (h, c))  #@
                loss = out.mean()
                loss.backward(retain_graph=True)
        """,
        """
        def train(lstm, sequence):
            h, c = start()
            for x in sequence:
                out, (h, c) = lstm(x, (h, c))
                loss = out.mean()
                loss.backward(retain_graph=True)
                h, c = h.detach(), c.detach()
        """,
    ),
    "predictions that pile up": (
        "tensors_kept",
        "predictions",
        """
        predictions = []
        with torch.no_grad():
            for x in loader:
                predictions.append(model(x))  #@
        result = torch.cat(predictions)
        """,
        """
        predictions = []
        with torch.no_grad():
            for x in loader:
                predictions.append(model(x).cpu())
        result = torch.cat(predictions)
        """,
    ),
    "copies of the weights every epoch": (
        "tensors_kept",
        "checkpoints",
        """
        for epoch in range(9):
            train(model)
            checkpoints.append({k: v.clone() for k, v in model.state_dict().items()})  #@
        """,
        """
        for epoch in range(9):
            train(model)
            checkpoints.append({k: v.cpu() for k, v in model.state_dict().items()})
        """,
    ),
    "deep copies of the weights": (
        "tensors_kept",
        "checkpoints",
        """
        for epoch in range(9):
            train(model)
            checkpoints[epoch] = copy.deepcopy(model.state_dict())  #@
        """,
        """
        for epoch in range(9):
            train(model)
            checkpoints[epoch] = {key: value.cpu() for key, value in model.state_dict().items()}
        """,
    ),
    "several results": (
        "tensors_kept",
        "results",
        """
        @torch.no_grad()
        def run():
            for i, x in enumerate(loader):
                logits = model(x)
                results[i] = (i, logits, logits.argmax(-1))  #@
        """,
        """
        @torch.no_grad()
        def run():
            for i, x in enumerate(loader):
                logits = model(x)
                results[i] = (i, logits.cpu(), logits.argmax(-1).cpu())
        """,
    ),
    "one backward for the sum": (
        "backward_once",
        "total",
        """
        def step(parts):
            total = 0
            for x, y in parts:
                loss = criterion(model(x), y)
                total = total + loss  #@
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
        """,
        """
        def step(parts):
            optimizer.zero_grad()
            for x, y in parts:
                loss = criterion(model(x), y)
                loss.backward()
            optimizer.step()
        """,
    ),
    "one backward for the mean, which is reported": (
        "backward_once",
        "total",
        """
        def step(parts):
            optimizer.zero_grad()
            total = 0
            for x, y in parts:
                total += criterion(model(x), y)  #@
            total = total / len(parts)
            total.backward()
            optimizer.step()
            print(total.item())
        """,
        """
        def step(parts):
            optimizer.zero_grad()
            total = 0
            for x, y in parts:
                part = criterion(model(x), y)
                (part / len(parts)).backward()
                total += part.detach()
            total = total / len(parts)
            optimizer.step()
            print(total.item())
        """,
    ),
    "one backward for a list of losses": (
        "backward_once",
        "losses",
        """
        def step(parts):
            optimizer.zero_grad()
            losses = []
            for x, y in zip(parts, targets):
                losses.append(criterion(model(x), y))  #@
            loss = torch.stack(losses).mean()
            loss.backward()
            optimizer.step()
        """,
        """
        def step(parts):
            optimizer.zero_grad()
            for x, y in zip(parts, targets):
                (criterion(model(x), y) / len(parts)).backward()
            optimizer.step()
        """,
    ),
    "one backward behind a scaler": (
        "backward_once",
        "total",
        """
        total = 0
        for x in parts:
            loss = model(x).mean()
            total += loss  #@
        scaler.scale(total).backward()
        """,
        """
        for x in parts:
            loss = model(x).mean()
            scaler.scale(loss).backward()
        """,
    ),
    "a checkpoint beside the model": (
        "copy_of_weights",
        None,
        """
        import torch
        model = Net().cuda()
        state = torch.load("best.pt")  #@
        model.load_state_dict(state["model"])
        """,
        """
        import torch
        model = Net().cuda()
        state = torch.load("best.pt", map_location="cpu")
        model.load_state_dict(state["model"])
        """,
    ),
    "a checkpoint that is loaded to the card": (
        "copy_of_weights",
        None,
        """
        import torch
        state = torch.load(path, map_location=device, weights_only=True)
        model.load_state_dict(state)  #@
        """,
        """
        import torch
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state)
        """,
    ),
    "the best weights so far": (
        "copy_of_weights",
        "best",
        """
        best = copy.deepcopy(model.state_dict())  #@
        """,
        """
        best = {key: value.cpu() for key, value in model.state_dict().items()}
        """,
    ),
    "gradients that stay as zeros": (
        "gradients",
        None,
        """
        optimizer.zero_grad(set_to_none=False)  #@
        """,
        """
        optimizer.zero_grad()
        """,
    ),
    "double by NumPy": (
        "float64",
        None,
        """
        import torch
        x = torch.from_numpy(table).to("cuda")  #@
        y = torch.from_numpy(labels).to("cuda")
        """,
        """
        import torch
        x = torch.from_numpy(table).float().to("cuda")
        y = torch.from_numpy(labels).to("cuda")
        """,
    ),
    "double by choice": (
        "float64",
        None,
        """
        import torch
        torch.set_default_dtype(torch.float64)
        model = Net().double().cuda()  #@
        weights = torch.ones(3, dtype=torch.double)
        """,
        """
        import torch
        model = Net().cuda()
        weights = torch.ones(3, dtype=torch.float32)
        """,
    ),
    "attention over three statements": (
        "attention_scores",
        None,
        """
        import torch.nn.functional as F

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            weights = scores.softmax(dim=-1)  #@
            out = weights @ v
            return self.proj(out)
        """,
        """
        import torch.nn.functional as F

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            out = F.scaled_dot_product_attention(q, k, v)
            return self.proj(out)
        """,
    ),
    "attention in one expression, with a scale of its own": (
        "attention_scores",
        None,
        """
        import torch

        def attend(q, k, v, scale):
            return torch.softmax(torch.matmul(q, k.transpose(2, 3)) * scale, dim=-1) @ v  #@
        """,
        """
        import torch

        def attend(q, k, v, scale):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)
        """,
    ),
}

REFUSALS = {
    "parts that go on from one another": (
        "backward_once",
        "total",
        """
        for x in sequence:
            h = cell(x, h)
            total = total + head(h).mean()  #@
        total.backward()
        """,
        "go on from one another",
    ),
    "a plain variable that is not known to keep anything": (
        "graph_kept",
        None,
        """
        for x in loader:
            output = model(x)  #@
        """,
        "is not of the form",
    ),
    "what backward is called on": (
        "graph_kept",
        "total",
        """
        for x in loader:
            total += model(x).mean()  #@
        total.backward()
        """,
        "total is what backward is called on",
    ),
    "a loss is needed with its graph": (
        "no_grad_missing",
        None,
        """
        def train():
            loss = model(x).mean()  #@
            loss.backward()
        """,
        "line 2 makes what backward is called on",
    ),
    "gradients are off already": (
        "no_grad_missing",
        None,
        """
        @torch.inference_mode()
        def evaluate():
            return model(x)  #@
        """,
        "runs without gradients already",
    ),
    "a mask is between": (
        "attention_scores",
        None,
        """
        def attend(q, k, v, mask):
            scores = q @ k.transpose(-2, -1)
            scores = scores.masked_fill(mask, float("-inf"))
            return scores.softmax(dim=-1) @ v  #@
        """,
        "a mask or a dropout is between",
    ),
    "dropout is between": (
        "attention_scores",
        None,
        """
        def attend(self, q, k, v):
            weights = self.dropout((q @ k.transpose(-2, -1)).softmax(-1))
            return weights @ v  #@
        """,
        "a mask or a dropout is between",
    ),
    "a mean over an unknown number of parts": (
        "backward_once",
        "losses",
        """
        losses = []
        for x in make():
            losses.append(model(x).mean())  #@
        torch.stack(losses).mean().backward()
        """,
        "how often the loop of line 2 goes round is not known",
    ),
    "a cause without a small change": ("static_state", None, "x = 1  #@\n", "no change of a few lines mends this"),
    "no Python": ("graph_kept", None, "x = = 1  #@\n", "line 1 cannot be read"),
}


OTHER_WAYS = {
    "what is kept is a dict": (
        "tensors_kept",
        "snapshots",
        """
        snapshots = []
        for epoch in range(3):
            snapshots.append(snapshot(model))  #@
        """,
        """
        snapshots = []
        for epoch in range(3):
            snapshots.append({key: value.cpu() for key, value in snapshot(model).items()})
        """,
    ),
    "what is kept is a tuple": (
        "tensors_kept",
        "states",
        """
        for ids in data:
            states.append(encoder(ids).hidden_states)  #@
        """,
        """
        for ids in data:
            states.append([value.cpu() for value in encoder(ids).hidden_states])
        """,
    ),
    "what is kept goes with something else": (
        "tensors_kept",
        "results",
        """
        for ids in batches:
            results["logits"].append(model(ids))  #@
            results["labels"].append(ids[:, 1:])
        """,
        """
        for ids in batches:
            results["logits"].append(model(ids).cpu())
            results["labels"].append(ids[:, 1:].cpu())
        """,
    ),
    "two losses of one loop": (
        "graph_kept",
        "prices",
        """
        prices, categories = [], []
        for x in batches:
            prices.append(price_loss)  #@
            categories.append(category_loss)
        """,
        """
        prices, categories = [], []
        for x in batches:
            prices.append(price_loss.item())
            categories.append(category_loss.item())
        """,
    ),
    "a target that is needed on the card": (
        "graph_kept",
        "history",
        """
        history = []
        for x in batches:
            history.append(model(x))  #@
        """,
        """
        history = []
        for x in batches:
            history.append(model(x).detach())
        """,
    ),
    "labels and features from NumPy": (
        "float64",
        None,
        """
        import torch
        x = torch.from_numpy(features).cuda()
        y = torch.from_numpy(target).cuda()
        model = make().double().cuda()  #@
        """,
        """
        import torch
        x = torch.from_numpy(features).float().cuda()
        y = torch.from_numpy(target).float().cuda()
        model = make().cuda()
        """,
    ),
    "a view whose last dimension is not innermost": (
        "attention_scores",
        None,
        """
        import torch
        import torch.nn.functional as F
        def forward(q, k, v):
            weight = torch.matmul(q, k.transpose(-1, -2)) * 0.125  #@
            weight = F.softmax(weight, dim=-1)
            return torch.matmul(weight, v)
        """,
        """
        import torch
        import torch.nn.functional as F
        def forward(q, k, v):
            return F.scaled_dot_product_attention(q.contiguous(), k.contiguous(), v.contiguous(), scale=0.125)
        """,
    ),
}


def marked(text, cause, name):
    """The text without its marks, and the request that they make."""
    lines, named, also = textwrap.dedent(text).lstrip("\n").splitlines(), 0, []
    for number, line in enumerate(lines, 1):
        for mark, found in (("#@", lambda: None), ("#+", lambda: also.append(number))):
            if f"  {mark}" in line:
                before, _, after = line.partition(f"  {mark}")
                lines[number - 1] = before + (f"  #{after}" if after else "")
                found()
                named = number if mark == "#@" else named
    return "\n".join(lines) + "\n", Request(cause, named, name=name, also=also)


@pytest.mark.parametrize("title", CHANGES)
def test_the_change_for_a_cause(title):
    cause, name, before, after = CHANGES[title]
    text, request = marked(before, cause, name)
    assert changes(text, "", request)[0] == textwrap.dedent(after).lstrip("\n")


@pytest.mark.parametrize("title", OTHER_WAYS)
def test_other_ways_follow_where_the_text_does_not_tell(title):
    """Each of them was the one with which a program still ran."""
    cause, name, before, after = OTHER_WAYS[title]
    text, request = marked(before, cause, name)
    first, *others = changes(text, "", request)
    wanted = textwrap.dedent(after).lstrip("\n")
    assert wanted in others and first != wanted


def test_what_a_loss_is_made_of_keeps_its_graph():
    text = """
for x in batches:
    out = model(x)
    penalty += regular(x)
    loss = criterion(out) + 0.1 * penalty
    loss.backward()
    history.append(out)
"""
    found = changes(text, "", Request("graph_kept", 7, name="history"))
    assert found and all("penalty += regular(x)\n" in one for one in found)


def test_integers_stay_integers():
    text = "import torch\nx = torch.from_numpy(features).cuda()\nids = torch.from_numpy(user_ids).cuda()\nmodel = make().double()\n"
    found = changes(text, "", Request("float64", 4))
    assert any("from_numpy(features).float()" in one for one in found) and all("from_numpy(user_ids).cuda()" in one for one in found)


@pytest.mark.parametrize("title", REFUSALS)
def test_no_change_rather_than_a_wrong_one(title):
    cause, name, before, why = REFUSALS[title]
    text, request = marked(before, cause, name)
    with pytest.raises(NoPatch, match=why):
        changes(text, "", request)


def test_every_cause_is_tried():
    assert {cause for cause, *_ in CHANGES.values()} == set(CAUSES)


@pytest.mark.parametrize("text", ["history = []\nhistory.append(loss)", "history = []\r\nhistory.append(loss)\r\n", "ä = 'ö'\nif grüße: history.append( loss )  # ü\n"])
def test_ends_of_lines_tabs_and_letters_stay(text):
    new = changes(text, "", Request("graph_kept", 2, name="history"))[0]
    assert new == text.replace("loss", "loss.item()")


def test_git_applies_the_diff(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("\n".join(f"x{i} = {i}" for i in range(20)) + "\nhistory = []\nhistory.append(loss)")
    asked = {"file": str(project / "train.py"), "cell": None, "shown": "project/train.py", "cause": "graph_kept", "line": 22, "name": "history", "also": []}
    said = answer(asked)["changes"][0]
    assert said["diff"] == said["patch"]
    assert said["diff"].endswith("-history.append(loss)\n\\ No newline at end of file\n+history.append(loss.item())\n\\ No newline at end of file\n")
    subprocess.run(["git", "apply"], input=said["patch"], text=True, cwd=tmp_path, check=True)
    assert (project / "train.py").read_text() == said["source"]


def notebook(*cells):
    made = [{"cell_type": "markdown", "metadata": {}, "source": ["# Title"]}]
    made += [{"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": cell.splitlines(True)} for cell in cells]
    return {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def test_a_cell_of_a_notebook(tmp_path):
    path = tmp_path / "book.ipynb"
    path.write_text(json.dumps(notebook("%matplotlib inline\nimport torch as th", "outputs = []", "for x in data:\n    outputs.append(model(x))"), indent=1) + "\n")
    asked = {"file": str(path), "cell": 3, "shown": "book.ipynb", "cause": "no_grad_missing", "line": 2, "name": "outputs", "also": []}
    said = answer(asked)["changes"][0]
    # By the name that a cell above gave it.
    assert said["source"] == "with th.no_grad():\n    for x in data:\n        outputs.append(model(x))"
    assert said["diff"].startswith("--- a/book.ipynb[3]\n+++ b/book.ipynb[3]\n")
    subprocess.run(["git", "apply"], input=said["patch"], text=True, cwd=tmp_path, check=True)
    cells = json.loads(path.read_text())["cells"]
    assert "".join(cells[3]["source"]) == said["source"]
    assert cells[:3] == notebook("%matplotlib inline\nimport torch as th", "outputs = []")["cells"]


def test_a_notebook_laid_out_in_another_way_is_shown_and_not_applied(tmp_path):
    path = tmp_path / "book.ipynb"
    path.write_text(json.dumps(notebook("history.append(loss)"), indent=7))
    asked = {"file": str(path), "cell": 1, "shown": "book.ipynb", "cause": "graph_kept", "line": 1, "name": "history", "also": []}
    assert answer(asked)["changes"][0]["patch"] is None
    assert answer({**asked, "cell": 2}) == {"refused": "the notebook cannot be read, or has no such cell"}
    assert "cannot be read" in answer({**asked, "file": str(tmp_path / "missing.py"), "cell": None})["refused"]


def test_a_changed_text_stands_in_for_scripts_and_modules(tmp_path):
    """Neither the file nor its bytecode counts, and tracebacks show what ran."""
    (tmp_path / "helper.py").write_text("value = 'old'\n")
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    run = [sys.executable, "-c"]
    subprocess.run([*run, "import helper"], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "__pycache__").is_dir()
    program = f"""
import sys, traceback
from oomph.virtual import substitute
substitute.install({{{str(tmp_path / "helper.py")!r}: "value = 'new'\\ndef fails():\\n    raise ValueError  # of the new text\\n", {str(tmp_path / "book.ipynb[2]")!r}: "cell"}})
import helper
print(helper.value, substitute.text_of("book.ipynb", 2), substitute.text_of("book.ipynb", 1), substitute.text_of("other.py"))
try:
    helper.fails()
except ValueError:
    print("# of the new text" in traceback.format_exc())
"""
    done = subprocess.run([*run, program], cwd=tmp_path, env=environment, check=True, text=True, capture_output=True)
    assert done.stdout == "new cell None None\nTrue\n"
    assert (tmp_path / "helper.py").read_text() == "value = 'old'\n"
