# cause: no_grad_missing
# from: giotto-ai/giotto-deep#44
# what: eight augmented views are averaged for each test batch, all with gradients
import torch
from torchvision.models import resnet50


def views(images):
    for turns in range(4):
        turned = torch.rot90(images, turns, dims=(2, 3))
        yield turned
        yield turned.flip(3)


class Ensemble:
    def __init__(self, model):
        self.model = model.eval()

    #! @torch.inference_mode()
    def __call__(self, images):
        total = None
        for view in views(images):
            scores = self.model(view).softmax(dim=1)  #?
            total = scores if total is None else total + scores  #?
        return total / 8


def main(batches=4, batch_size=32):
    model = resnet50(num_classes=200).cuda()
    ensemble = Ensemble(model)
    correct = 0
    for _ in range(batches):
        images = torch.randn(batch_size, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 200, (batch_size,), device="cuda")
        predicted = ensemble(images).argmax(dim=1)
        correct += (predicted == labels).sum().item()
    print(f"accuracy {correct / (batches * batch_size):.3f}")


if __name__ == "__main__":
    main()
