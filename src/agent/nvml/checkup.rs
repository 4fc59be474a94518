//! What an agent needs of a GPU host: library, driver, permissions, MIG, persistence mode.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::NvmlOptions;
use super::library::{Condition, Library};
use super::raw;
use crate::agent::checkup::Check;

/// Checks the library and each GPU that it has. Nothing is changed.
#[must_use]
pub fn of_host(options: &NvmlOptions) -> Vec<Check> {
    let mut library = Library::new(options.library.clone());
    library.load(None);
    let Some(nvml) = library.loaded() else {
        let condition = library.condition().cloned().unwrap_or(Condition::NoLibrary);
        return vec![Check::broken("library", condition.to_string(), condition.remedy())];
    };
    let driver = library.driver.as_ref().map_or("of an unknown version", |driver| driver.as_str());
    let mut checks = vec![Check::well("library", format!("NVML answers, driver {driver}"))];
    let count = match nvml.device_count() {
        Ok(0) => {
            let none = Condition::NoGpu;
            checks.push(Check::doubtful("gpus", none.to_string(), none.remedy()));
            return checks;
        }
        Ok(count) => count,
        Err(error) => {
            checks.push(Check::broken("gpus", error.to_string(), Condition::Failed(String::new()).remedy()));
            return checks;
        }
    };
    for index in 0..count {
        match nvml.device_by_index(index) {
            Ok(device) => of_device(&mut checks, &nvml, &device, index),
            Err(NvmlError::NoPermission) => {
                let found = format!("GPU {index} may not be opened");
                checks.push(Check::broken("permission", found, Condition::NoPermission.remedy()));
            }
            Err(error) => {
                let found = format!("GPU {index} does not answer: {error}");
                checks.push(Check::doubtful("gpu", found, "Its time is unknown until it does. See `dmesg`."));
            }
        }
    }
    checks
}

fn of_device(checks: &mut Vec<Check>, nvml: &Nvml, device: &Device<'_>, index: u32) {
    let named = match (device.name(), device.uuid()) {
        (Ok(name), Ok(uuid)) => format!("GPU {index} {name} {uuid}"),
        (Err(error), _) | (_, Err(error)) => {
            let found = format!("GPU {index} does not answer: {error}");
            checks.push(Check::doubtful("gpu", found, "Its time is unknown until it does. See `dmesg`."));
            return;
        }
    };
    checks.push(Check::well("gpu", named));
    match device.mig_mode() {
        // It has none.
        Err(_) => {}
        Ok(mode) if mode.current != mode.pending => checks.push(Check::doubtful(
            "mig",
            format!("GPU {index}: another mode waits for a reset of the GPU"),
            "Reset it when nobody uses it (`nvidia-smi --gpu-reset`), or restart the node.",
        )),
        // 1: on. Source: NVML, nvmlDeviceGetMigMode.
        Ok(mode) if mode.current == 1 => of_mig(checks, nvml, device, index),
        Ok(_) => checks.push(Check::well("mig", format!("GPU {index}: off"))),
    }
    if matches!(device.is_in_persistent_mode(), Ok(false)) {
        checks.push(Check::doubtful(
            "persistence",
            format!("GPU {index}: off; the driver forgets counters when nobody uses the GPU"),
            "Run nvidia-persistenced, or `nvidia-smi -pm 1`.",
        ));
    }
}

fn of_mig(checks: &mut Vec<Check>, nvml: &Nvml, device: &Device<'_>, index: u32) {
    let profiles = raw::profiles(nvml, device).unwrap_or_default();
    let listed =
        profiles.iter().map(|profile| raw::gpu_instances(nvml, device, profile)).find_map(Result::err);
    checks.push(match listed {
        Some(NvmlError::NoPermission) => Check::doubtful(
            "mig",
            format!("GPU {index}: on; where its instances lie cannot be read"),
            "Run the agent as root, or give it the capability mig/monitor. Without it placements are assumed.",
        ),
        _ => Check::well("mig", format!("GPU {index}: on")),
    });
}
