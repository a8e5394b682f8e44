//! What PyTorch itself says of its devices (only with `--deep`).
//!
//! Wrong if it cannot be imported, or sees no device where the driver has a card that is not hidden.

use crate::facts::Facts;
use crate::finding::Finding;
use oomph_explain::bytes;

pub(super) fn look(facts: &Facts) -> Vec<Finding> {
    let deep = match &facts.deep {
        None => return Vec::new(),
        Some(Err(why)) => {
            return vec![
                Finding::wrong("torch", format!("PyTorch cannot be imported: {why}"))
                    .fix("see the whole error")
                    .command("python -c \"import torch\""),
            ];
        }
        Some(Ok(deep)) => deep,
    };
    if !deep.available && facts.torch_has_cuda() && !facts.visible().is_empty() {
        return vec![
            Finding::wrong("torch", "torch.cuda.is_available() is False, and the driver has a card")
                .means("What is said above may be why. PyTorch's own words come with the first use of the device.")
                .fix("see them")
                .command("python -c \"import torch; torch.zeros(1, device='cuda')\""),
        ];
    }
    let devices: Vec<String> = (deep.devices.iter())
        .map(|device| format!("{} with {} of {} free", device.name, bytes(device.free), bytes(device.total)))
        .collect();
    let told = if devices.is_empty() { "no device".to_owned() } else { devices.join("; ") };
    vec![Finding::fine("torch", format!("PyTorch sees {told}"))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::laid_out::{GIB, machine, told};
    use crate::finding::Level::{Fine, Wrong};
    use crate::python::{Deep, DeepDevice};

    #[test]
    fn what_pytorch_sees_is_told_and_what_it_should_see_is_missed() {
        let mut facts = machine();
        assert!(look(&facts).is_empty());
        facts.deep = Some(Err("ImportError: no".to_owned()));
        assert_eq!(told(&look(&facts)), [(Wrong, "PyTorch cannot be imported: ImportError: no")]);
        facts.deep = Some(Ok(Deep::default()));
        assert_eq!(told(&look(&facts))[0].0, Wrong);
        facts.settings.values.insert("CUDA_VISIBLE_DEVICES", String::new());
        assert_eq!(told(&look(&facts)), [(Fine, "PyTorch sees no device")]);
        let device = DeepDevice { name: "Tesla T4".to_owned(), free: 14 * GIB, total: 15 * GIB };
        facts.deep = Some(Ok(Deep { available: true, devices: vec![device], ..Deep::default() }));
        assert_eq!(told(&look(&facts)), [(Fine, "PyTorch sees Tesla T4 with 14.0 GiB of 15.0 GiB free")]);
    }
}
