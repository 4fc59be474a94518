//! The structures of the C library: a binding whose structures have other sizes speaks another language.

use std::mem::size_of;

use nvml_wrapper_sys::bindings as c;

macro_rules! sizes {
    ($($kind:ident: $size:expr),* $(,)?) => {
        [$((stringify!($kind), size_of::<c::$kind>(), $size)),*]
    };
}

#[test]
fn structures_have_the_sizes_of_the_driver() {
    let sizes = sizes! {
        nvmlMemory_v2_t: 40,
        nvmlProcessInfo_t: 24,
        nvmlProcessUtilizationSample_t: 32,
        nvmlProcessesUtilizationInfo_v1_t: 24,
        nvmlVgpuInstanceUtilizationSample_t: 48,
        nvmlVgpuInstanceUtilizationInfo_v1_t: 64,
        nvmlVgpuInstancesUtilizationInfo_v1_t: 32,
        nvmlVgpuProcessUtilizationSample_t: 96,
        nvmlVgpuProcessUtilizationInfo_v1_t: 104,
        nvmlVgpuProcessesUtilizationInfo_v1_t: 24,
        nvmlVgpuLicenseInfo_t: 24,
        nvmlDeviceAttributes_t: 40,
        nvmlGpuInstanceProfileInfo_t: 48,
        nvmlGpuInstanceProfileInfo_v2_t: 152,
        nvmlGpuInstanceProfileInfo_v3_st: 152,
        nvmlGpuInstanceInfo_t: 24,
        nvmlComputeInstanceInfo_t: 32,
        nvmlGpuInstancePlacement_t: 8,
        nvmlAccountingStats_t: 56,
        nvmlFieldValue_t: 40,
        nvmlEventData_t: 32,
        nvmlPciInfo_t: 68,
        nvmlVgpuHeterogeneousMode_v1_t: 8,
        nvmlVgpuPlacementId_v1_t: 8,
        nvmlVgpuTypeBar1Info_v1_t: 16,
        nvmlVgpuRuntimeState_v1_t: 16,
        nvmlVgpuSchedulerLog_t: 9_624,
        nvmlGpmMetricsGet_t: 8_424,
    };
    for (name, size, expected) in sizes {
        assert_eq!(size, expected, "{name}");
    }
}
