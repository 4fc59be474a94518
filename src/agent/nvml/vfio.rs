//! Cards that were given to VMs: bound to `vfio-pci`, so that no driver of the host sees them.
//!
//! Such a card has no UUID here. It keeps the one under which the driver knew its place before; where there
//! was none, it is `PCI-` and its address, and its model is what its PCI id says. Who holds it is the
//! process that has its VFIO group open: a VM, by the UUID or the name on its command line.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::host::Host;
use crate::agent::source::{DeviceInfo, Holder, Presence, Standing};
use crate::domain::device::SharingMode;
use crate::domain::ids::Name;
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::domain::usage::{Evidence, EvidenceField, Slice, SliceSize};

/// Between two searches of all processes for holders of cards that nobody is known to hold, in microseconds.
const SEARCH_EVERY_MICROS: i64 = 2 * MICROS_PER_SECOND;
/// Of a PCI vital product data, more is not read.
const VPD_BYTES_MAX: usize = 32_768;

/// A card in the hands of VFIO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Card {
    /// Its address as the driver writes them.
    pub(super) pci: Name,
    /// Vendor and device, such as `10de:2330`.
    id: String,
    serial: Option<Name>,
    /// The files that whoever uses it has open.
    files: Vec<PathBuf>,
}

/// The address of sysfs as NVML writes it: eight digits of the domain, capitals.
pub(super) fn address(text: &str) -> Option<Name> {
    let (domain, rest) = text.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    Name::parse(&format!("{domain:08X}:{}", rest.to_ascii_uppercase())).ok()
}

impl Card {
    /// What it is called where nobody knew it before.
    pub(super) fn own_name(&self) -> Option<Name> {
        Name::parse(&format!("PCI-{}", self.pci)).ok()
    }

    /// It as a device, of which nothing more is known than PCI says.
    pub(super) fn info(&self, index: u32) -> Option<DeviceInfo> {
        let model = Name::parse(&format!("NVIDIA PCI {}", self.id)).ok()?;
        let (pci, serial) = (Some(self.pci.clone()), self.serial.clone());
        Some(DeviceInfo { uuid: self.own_name()?, model, memory_mib: 0, index, pci, serial })
    }

    /// What is there now.
    pub(super) fn standing(&self, device: &Name, holder: Option<Evidence>) -> Standing {
        let slice = Slice::plain(device.clone(), SharingMode::Passthrough, SliceSize::Whole);
        let slices = if holder.is_some() { vec![slice] } else { Vec::new() };
        Standing {
            device: device.clone(),
            presence: Presence::Present,
            scheduler: None,
            sees_holders: true,
            slices,
            holders: holder.into_iter().map(|evidence| Holder { slice: 0, evidence }).collect(),
            meters: Vec::new(),
        }
    }
}

/// The cards that are bound to VFIO, in the order of their addresses.
pub(super) fn cards(sys: &Path) -> Vec<Card> {
    let Ok(entries) = fs::read_dir(sys.join("bus/pci/devices")) else { return Vec::new() };
    let mut cards: Vec<Card> = entries.flatten().filter_map(|entry| card(&entry.path())).collect();
    cards.sort_by(|a, b| a.pci.cmp(&b.pci));
    cards
}

fn card(folder: &Path) -> Option<Card> {
    let word = |file: &str| {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    let link = |file: &str| {
        let target = fs::read_link(folder.join(file)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    };
    // A virtual function is a part of a board that the host has: its vGPU is seen there.
    if folder.join("physfn").exists() {
        return None;
    }
    let (vendor, class) = (word("vendor")?, word("class")?);
    if vendor != 0x10de || class >> 16 != 0x03 || link("driver")? != "vfio-pci" {
        return None;
    }
    let mut files: Vec<PathBuf> =
        link("iommu_group").into_iter().map(|group| Path::new("/dev/vfio").join(group)).collect();
    // With iommufd a card has a file of its own.
    let own = fs::read_dir(folder.join("vfio-dev")).into_iter().flatten().flatten();
    files.extend(own.map(|entry| Path::new("/dev/vfio/devices").join(entry.file_name())));
    Some(Card {
        pci: address(folder.file_name()?.to_str()?)?,
        id: format!("{vendor:04x}:{:04x}", word("device")?),
        serial: fs::read(folder.join("vpd")).ok().and_then(|bytes| serial_of(&bytes)),
        files,
    })
}

/// The serial number of a PCI vital product data. Source: PCI Local Bus Specification 3.0, appendix I.
fn serial_of(bytes: &[u8]) -> Option<Name> {
    let mut rest = bytes.get(..bytes.len().min(VPD_BYTES_MAX))?;
    // Large resources: a tag, two bytes of length, the data. 0x90 has the read-only keywords.
    while let [tag, low, high, after @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let (data, next) = after.split_at_checked(length)?;
        if *tag == 0x90 {
            let mut keywords = data;
            while let [one, two, length, after @ ..] = keywords {
                let (value, next) = after.split_at_checked(usize::from(*length))?;
                if [*one, *two] == *b"SN" {
                    return Name::parse(std::str::from_utf8(value).ok()?.trim_end_matches('\0')).ok();
                }
                keywords = next;
            }
        }
        if *tag & 0x80 == 0 {
            return None;
        }
        rest = next;
    }
    None
}

/// Who holds which card.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// By address: the process, and what it showed.
    known: HashMap<Name, (u32, Evidence)>,
    searched: Option<Instant>,
}

impl Holders {
    /// Who holds each card now, in their order. Who is known is asked for first; all processes are searched
    /// only for cards that nobody is known to hold, and not at each look.
    pub(super) fn of(&mut self, host: &mut Host, cards: &[Card], at: Instant) -> Vec<Option<Evidence>> {
        self.known.retain(|pci, (pid, _)| {
            cards.iter().find(|card| card.pci == *pci).is_some_and(|card| opens(host, *pid, &card.files))
        });
        let is_due =
            self.searched.is_none_or(|last| !(0..SEARCH_EVERY_MICROS).contains(&at.micros_since(last)));
        let is_open = |card: &&Card| !self.known.contains_key(&card.pci);
        let open: Vec<&Card> = cards.iter().filter(is_open).collect();
        if is_due && !open.is_empty() {
            self.searched = Some(at);
            let found = search(host, &open);
            self.known.extend(found);
        }
        cards.iter().map(|card| self.known.get(&card.pci).map(|(_, seen)| seen.clone())).collect()
    }
}

/// Whether a process has one of the files open.
fn opens(host: &Host, pid: u32, files: &[PathBuf]) -> bool {
    let Ok(entries) = fs::read_dir(host.folder(pid).join("fd")) else { return false };
    entries.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|target| files.contains(&target)))
}

fn search(host: &mut Host, cards: &[&Card]) -> Vec<(Name, (u32, Evidence))> {
    let Ok(entries) = fs::read_dir(&host.roots.proc) else { return Vec::new() };
    let mut pids: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let mut found = Vec::new();
    for pid in pids {
        let Ok(entries) = fs::read_dir(host.folder(pid).join("fd")) else { continue };
        let targets: Vec<PathBuf> =
            entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
        for card in cards.iter().filter(|card| card.files.iter().any(|file| targets.contains(file))) {
            found.extend(evidence(host, pid).map(|seen| (card.pci.clone(), (pid, seen))));
        }
    }
    found
}

/// What is seen of a VM by its process on the host.
fn evidence(host: &mut Host, pid: u32) -> Option<Evidence> {
    let process = host.process(pid)?;
    let line = fs::read(host.folder(pid).join("cmdline")).unwrap_or_default();
    let words: Vec<String> =
        line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let vm = vm_of(&words).or_else(|| process.cgroup.as_ref().and_then(|path| vm_of_cgroup(path.as_str())));
    let vm = vm.and_then(|text| Name::parse(&text).ok());
    let fields = [
        (EvidenceField::Cgroup, process.cgroup.clone()),
        (EvidenceField::User, process.user.clone()),
        (EvidenceField::Process, process.command.clone()),
        (EvidenceField::Vm, vm),
    ];
    let seen: Evidence = fields.into_iter().filter_map(|(field, value)| Some((field, value?))).collect();
    (!seen.is_empty()).then_some(seen)
}

/// A VM's UUID by QEMU's command line, or its name there.
fn vm_of(words: &[String]) -> Option<String> {
    let after = |option: &str| {
        words.windows(2).find_map(|pair| match pair {
            [name, value] if name.trim_start_matches('-') == option => Some(value.clone()),
            _ => None,
        })
    };
    let name = || {
        let text = after("name")?;
        let guest = text.split(',').find_map(|part| part.strip_prefix("guest="));
        let first = text.split(',').next().filter(|part| !part.contains('='));
        guest.or(first).map(str::to_owned)
    };
    after("uuid").or_else(name).filter(|text| !text.trim().is_empty())
}

/// A VM's name by the control group that libvirt puts it into: `machine-qemu\x2d3\x2dweb.scope`.
fn vm_of_cgroup(path: &str) -> Option<String> {
    let part = path.split('/').find_map(|part| part.strip_prefix("machine-qemu"))?;
    let part = part.strip_suffix(".scope").unwrap_or(part).replace("\\x2d", "-");
    let (_, name) = part.trim_start_matches('-').split_once('-')?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_known_by_its_command_line_or_its_control_group() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (line, expected) in [
            ("qemu-kvm -name guest=web,debug-threads=on -uuid 1f-2 -m 4", Some("1f-2")),
            ("qemu-kvm -name guest=web,debug-threads=on -m 4", Some("web")),
            ("/usr/bin/kvm -id 100 -name vm-a,debug-threads=on", Some("vm-a")),
            ("qemu --uuid 7", Some("7")),
            ("sleep 5", None),
        ] {
            assert_eq!(vm_of(&words(line)).as_deref(), expected, "{line}");
        }
        let path = r"/machine.slice/machine-qemu\x2d3\x2dweb\x2d1.scope/libvirt/emulator";
        assert_eq!(vm_of_cgroup(path).as_deref(), Some("web-1"));
        assert_eq!(vm_of_cgroup("/system.slice/x.service"), None);
    }

    #[test]
    fn a_serial_is_read_from_product_data_that_may_be_torn() {
        let name = b"\x82\x02\x00HI";
        let data = b"PN\x04900-SN\x0d1650123456789RV\x01\x00";
        let length = u8::try_from(data.len()).unwrap();
        let whole = [&name[..], &[0x90, length, 0], data, b"\x78"].concat();
        assert_eq!(serial_of(&whole).unwrap().as_str(), "1650123456789");
        for cut in 0..whole.len() {
            let _no_panic = serial_of(&whole[..cut]);
        }
        assert_eq!(serial_of(b"\x78"), None);
    }

    #[test]
    fn addresses_are_written_as_the_driver_writes_them() {
        assert_eq!(address("0000:3b:00.0").unwrap().as_str(), "00000000:3B:00.0");
        assert_eq!(address("10000:e1:00.0").unwrap().as_str(), "00010000:E1:00.0");
        assert_eq!(address("x"), None);
    }
}
