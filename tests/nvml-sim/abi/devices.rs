//! Devices: how they are found, and what they are.

use std::os::raw::{c_char, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlMemory_v2_t, nvmlPciInfo_t};

use super::{array, check_version, exports, handle, number, put, put_text, size, take, text};
use crate::scenario::{Board, ComputeMode, Virtualization};
use crate::state::{Answer, Call, Code, Device};

/// NVML's brands, as far as our boards are of them.
const BRAND_TESLA: u32 = 2;
const BRAND_NVIDIA: u32 = 14;
const BRAND_GEFORCE_RTX: u32 = 15;

/// The PCI address of a board: domain, bus and device.
fn address(call: &Call<'_>, board: &Board) -> (u32, u32, u32) {
    let place = call.scenario.board(&board.uuid).map_or(0, |(place, _)| place);
    let by_place = (0, 0x10 + u32::try_from(place).unwrap_or(0), 0);
    let told = board.pci.as_deref().and_then(|text| {
        let mut parts = text.split([':', '.']).map(|part| u32::from_str_radix(part, 16).ok());
        Some((parts.next()??, parts.next()??, parts.next()??))
    });
    told.unwrap_or(by_place)
}

fn bus_id((domain, bus, device): (u32, u32, u32)) -> String {
    format!("{domain:08X}:{bus:02X}:{device:02X}.0")
}

/// The handle of the board that is this, if it answers.
fn handle_of(call: &mut Call<'_>, found: Option<&Board>, device: *mut nvmlDevice_t) -> Answer {
    let board = found.ok_or(Code::NOT_FOUND)?;
    call.check_board(board)?;
    let found = call.board_handle(board);
    put(device, handle(found))
}

fn minor(call: &Call<'_>, board: &Board) -> u32 {
    let place = call.scenario.board(&board.uuid).map_or(0, |(place, _)| place);
    board.minor.unwrap_or(u32::try_from(place).unwrap_or(0))
}

exports! {
    fn nvmlDeviceGetCount_v2(call, count: *mut c_uint) {
        put(count, super::short(call.boards().len()))
    }

    fn nvmlDeviceGetHandleByIndex_v2(call, index: c_uint, device: *mut nvmlDevice_t) {
        let boards = call.boards();
        let board = boards.get(size(index)).copied().ok_or(Code::INVALID_ARGUMENT)?;
        handle_of(call, Some(board), device)
    }

    fn nvmlDeviceGetHandleByUUID(call, uuid: *const c_char, device: *mut nvmlDevice_t) {
        let uuid = text(uuid)?;
        let boards = call.boards();
        if let Some(board) = boards.iter().find(|board| board.uuid == uuid) {
            return handle_of(call, Some(board), device);
        }
        let mut of_mig = boards.iter().flat_map(|board| call.mig_devices(board));
        let found = of_mig.find(|device| device.compute.uuid == uuid).ok_or(Code::NOT_FOUND)?;
        call.check_board(found.parent.board)?;
        let found = call.mig_handle(found);
        put(device, handle(found))
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(call, bus: *const c_char, device: *mut nvmlDevice_t) {
        // Both lengths of the domain are in use: `0000:17:00.0` and `00000000:17:00.0`.
        let wanted = text(bus)?.to_uppercase();
        let (domain, rest) = wanted.split_once(':').ok_or(Code::INVALID_ARGUMENT)?;
        let domain = u32::from_str_radix(domain, 16).map_err(|_| Code::INVALID_ARGUMENT)?;
        let wanted = format!("{domain:08X}:{rest}");
        let found = call.boards().into_iter().find(|board| bus_id(address(call, board)) == wanted);
        handle_of(call, found, device)
    }

    fn nvmlDeviceGetHandleBySerial(call, serial: *const c_char, device: *mut nvmlDevice_t) {
        let serial = text(serial)?;
        let found = call.boards().into_iter().find(|board| board.serial.as_ref() == Some(&serial));
        handle_of(call, found, device)
    }

    fn nvmlDeviceGetIndex(call, device: nvmlDevice_t, index: *mut c_uint) {
        match call.device(number(device))? {
            Device::Board(board) => {
                let place = call.boards().iter().position(|other| other.uuid == board.uuid);
                put(index, super::short(place.ok_or(Code::GPU_LOST)?))
            }
            Device::Mig(device) => put(index, device.compute.slot),
        }
    }

    fn nvmlDeviceGetUUID(call, device: nvmlDevice_t, uuid: *mut c_char, length: c_uint) {
        match call.device(number(device))? {
            Device::Board(board) => put_text(uuid, length, &board.uuid),
            Device::Mig(device) => put_text(uuid, length, &device.compute.uuid),
        }
    }

    fn nvmlDeviceGetName(call, device: nvmlDevice_t, name: *mut c_char, length: c_uint) {
        let device = call.device(number(device))?;
        let kind = call.kind(device.board())?;
        let of_board = device.board().name.as_deref().unwrap_or(&kind.name);
        match device {
            Device::Board(_) => put_text(name, length, of_board),
            Device::Mig(mig) => put_text(name, length, &format!("{of_board} MIG {}", mig.name())),
        }
    }

    fn nvmlDeviceGetSerial(call, device: nvmlDevice_t, serial: *mut c_char, length: c_uint) {
        let board = call.board(number(device))?;
        put_text(serial, length, board.serial.as_deref().ok_or(Code::NOT_SUPPORTED)?)
    }

    fn nvmlDeviceGetBoardPartNumber(call, device: nvmlDevice_t, part: *mut c_char, length: c_uint) {
        let board = call.board(number(device))?;
        put_text(part, length, board.part_number.as_deref().ok_or(Code::NOT_SUPPORTED)?)
    }

    fn nvmlDeviceGetBoardId(call, device: nvmlDevice_t, id: *mut c_uint) {
        let board = call.board(number(device))?;
        let (domain, bus, _) = address(call, board);
        put(id, (domain << 16) | (bus << 8))
    }

    fn nvmlDeviceGetMinorNumber(call, device: nvmlDevice_t, to: *mut c_uint) {
        let board = call.board(number(device))?;
        put(to, minor(call, board))
    }

    fn nvmlDeviceGetPciInfo_v3(call, device: nvmlDevice_t, pci: *mut nvmlPciInfo_t) {
        let board = call.board(number(device))?;
        let kind = call.kind(board)?;
        let (domain, bus, device) = address(call, board);
        put(pci, nvmlPciInfo_t {
            busIdLegacy: array(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
            domain,
            bus,
            device,
            pciDeviceId: (kind.device_id << 16) | 0x10DE,
            pciSubSystemId: 0,
            busId: array(&bus_id((domain, bus, device))),
        })
    }

    fn nvmlDeviceGetBrand(call, device: nvmlDevice_t, brand: *mut c_uint) {
        let board = call.board(number(device))?;
        let kind = call.kind(board)?;
        put(brand, match &kind.name {
            name if name.starts_with("Tesla") => BRAND_TESLA,
            name if name.contains("GeForce") => BRAND_GEFORCE_RTX,
            _ => BRAND_NVIDIA,
        })
    }

    fn nvmlDeviceGetArchitecture(call, device: nvmlDevice_t, architecture: *mut c_uint) {
        let board = call.board(number(device))?;
        put(architecture, call.kind(board)?.architecture)
    }

    fn nvmlDeviceGetMemoryInfo_v2(call, device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) {
        let device = call.device(number(device))?;
        let asked = take(memory)?;
        check_version::<nvmlMemory_v2_t>(asked.version, 2)?;
        let known = call.memory(device)?;
        let free = known.total.saturating_sub(known.reserved + known.used);
        put(memory, nvmlMemory_v2_t {
            version: asked.version,
            total: known.total,
            reserved: known.reserved,
            free,
            used: known.used,
        })
    }

    fn nvmlDeviceGetPersistenceMode(call, device: nvmlDevice_t, mode: *mut c_uint) {
        let board = call.board(number(device))?;
        put(mode, u32::from(board.persistence))
    }

    fn nvmlDeviceGetComputeMode(call, device: nvmlDevice_t, mode: *mut c_uint) {
        let board = call.board(number(device))?;
        put(mode, match board.compute_mode {
            ComputeMode::Default => 0,
            ComputeMode::Prohibited => 2,
            ComputeMode::ExclusiveProcess => 3,
        })
    }

    fn nvmlDeviceGetVirtualizationMode(call, device: nvmlDevice_t, mode: *mut c_uint) {
        let board = call.board(number(device))?;
        put(mode, match board.virtualization {
            Virtualization::None => 0,
            Virtualization::Passthrough => 1,
            Virtualization::Guest => 2,
            Virtualization::Host => 3,
            Virtualization::HostVsga => 4,
        })
    }

    fn nvmlDeviceGetTotalEnergyConsumption(call, device: nvmlDevice_t, energy: *mut c_ulonglong) {
        let board = call.board(number(device))?;
        put(energy, call.energy(board)?)
    }
}
