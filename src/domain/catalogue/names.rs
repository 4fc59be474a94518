//! Names of MIG profiles and vGPU types, which drivers, Kubernetes and hypervisors write in several ways.

use std::fmt;

use super::Media;
use crate::domain::ids::Name;

/// What may follow the size of a MIG profile: media engines (one, all, none of them), or graphics.
const SUFFIXES: [&str; 5] = ["", "+me", "+me.all", "-me", "+gfx"];
/// What the 0 GB types of old boards have: 512 MiB.
const HALF_GIB_IN_MIB: u32 = 512;
const MIB_PER_GIB: u32 = 1024;

/// A MIG profile's name, `[Cc.]Gg.NNgb[attributes]`, read apart. Shown as the driver prints it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileName {
    /// Compute slices of a compute instance that has fewer than its GPU instance; `None`: it has all.
    pub compute_instance: Option<u16>,
    /// Compute slices of the GPU instance.
    pub slices: u16,
    /// Memory in GB, as the name says it: rounded, and not always the same for two drivers.
    pub gigabytes: u16,
    /// Nothing, `+me`, `+me.all`, `-me` or `+gfx`.
    pub suffix: String,
}

impl ProfileName {
    /// Reads a name in any case, with `MIG ` before it, or as Kubernetes names the resource
    /// (`nvidia.com/mig-1g.10gb.me`, where `.` stands for `+`).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        let text = ["nvidia.com/mig-", "mig-", "mig "]
            .iter()
            .find_map(|prefix| text.strip_prefix(prefix))
            .unwrap_or(&text);
        let (counts, attributes) = text.trim_start().split_once("gb")?;
        let (counts, gigabytes) = counts.rsplit_once('.')?;
        let (compute, slices) = match counts.split_once('.') {
            Some((compute, slices)) => (Some(number(compute.strip_suffix('c')?)?), slices),
            None => (None, counts),
        };
        let slices = number(slices.strip_suffix('g')?)?;
        if slices == 0 || compute.is_some_and(|compute| compute == 0 || compute > slices) {
            return None;
        }
        let suffix = match attributes.strip_prefix('.') {
            Some(attribute) => format!("+{attribute}"),
            None => attributes.to_owned(),
        };
        SUFFIXES.contains(&suffix.as_str()).then_some(Self {
            compute_instance: compute.filter(|compute| *compute != slices),
            slices,
            gigabytes: number(gigabytes)?,
            suffix,
        })
    }

    /// The GPU instance of a compute instance.
    #[must_use]
    pub fn gpu_instance(&self) -> Self {
        Self { compute_instance: None, ..self.clone() }
    }

    /// The media engines that the name speaks of.
    #[must_use]
    pub fn media(&self) -> Media {
        match self.suffix.as_str() {
            "+me" => Media::One,
            "+me.all" => Media::All,
            "-me" => Media::Without,
            _ => Media::None,
        }
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(compute) = self.compute_instance {
            write!(f, "{compute}c.")?;
        }
        write!(f, "{}g.{}gb{}", self.slices, self.gigabytes, self.suffix)
    }
}

/// A series of vGPU types, by the license that they need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Series {
    /// Virtual workstations.
    Q,
    /// Virtual desktops.
    B,
    /// Virtual applications.
    A,
    /// Compute.
    C,
}

impl Series {
    /// All series.
    pub const ALL: [Self; 4] = [Self::Q, Self::B, Self::A, Self::C];

    /// The letter in a type's name.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Q => 'Q',
            Self::B => 'B',
            Self::A => 'A',
            Self::C => 'C',
        }
    }
}

/// A vGPU type's name, `board[-G]-FS[ME][D]`, read apart. Shown in capitals and without the vendor: two ways of
/// writing one type are shown alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VgpuTypeName {
    /// The board's code, in capitals; it may have digits and hyphens in it.
    pub board: Name,
    /// Compute slices of the GPU instance on which it runs; `None`: time-sliced on the whole GPU.
    pub gi_slices: Option<u16>,
    /// Framebuffer in GB, as the name says it; 0 means half a gigabyte.
    pub framebuffer_gb: u16,
    /// The series.
    pub series: Series,
    /// Whether its GPU instance has the media engines (`ME`).
    pub media: bool,
    /// The display count that the B types of old boards end in.
    pub displays: Option<u8>,
}

impl VgpuTypeName {
    /// Reads a name from the right, in any case, with or without `GRID ` or `NVIDIA ` before it (`grid_`, `nvidia_`
    /// on vSphere). A directory name such as `nvidia-476` holds a number of the driver's and is no type's name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_uppercase();
        let text = ["GRID ", "GRID_", "NVIDIA ", "NVIDIA_"]
            .iter()
            .find_map(|vendor| text.strip_prefix(vendor))
            .unwrap_or(&text);
        let (head, tail) = text.rsplit_once('-')?;
        let (framebuffer, tail) = tail.split_at_checked(tail.find(|c: char| !c.is_ascii_digit())?)?;
        let mut letters = tail.chars();
        let letter = letters.next()?;
        let series = Series::ALL.into_iter().find(|series| series.letter() == letter)?;
        let rest = letters.as_str();
        let (media, digit) = match rest.strip_prefix("ME") {
            Some(digit) => (true, digit),
            None => (false, rest),
        };
        let displays = match digit.as_bytes() {
            [] => None,
            [digit] if digit.is_ascii_digit() => Some(digit.saturating_sub(b'0')),
            _ => return None,
        };
        let (board, gi_slices) = match head.rsplit_once('-') {
            Some((board, slices)) if matches!(slices.as_bytes(), [b'1'..=b'9']) => (board, number(slices)),
            Some(_) | None => (head, None),
        };
        let is_code =
            board.starts_with(|c: char| c.is_ascii_alphanumeric()) && board.bytes().all(is_code_byte);
        is_code.then_some(Self {
            board: Name::parse(board).ok()?,
            gi_slices,
            framebuffer_gb: number(framebuffer)?,
            series,
            media,
            displays,
        })
    }

    /// The framebuffer in MiB as the name says it; the driver's own figure can be a little more or less.
    #[must_use]
    pub fn framebuffer_mib(&self) -> u32 {
        match self.framebuffer_gb {
            0 => HALF_GIB_IN_MIB,
            gigabytes => u32::from(gigabytes).saturating_mul(MIB_PER_GIB),
        }
    }
}

impl fmt::Display for VgpuTypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-", self.board)?;
        if let Some(slices) = self.gi_slices {
            write!(f, "{slices}-")?;
        }
        write!(f, "{}{}", self.framebuffer_gb, self.series.letter())?;
        if self.media {
            f.write_str("ME")?;
        }
        self.displays.map_or(Ok(()), |displays| write!(f, "{displays}"))
    }
}

/// A model as names are compared: in small letters, with one hyphen for spaces, hyphens and underscores, and without
/// the vendor before it.
pub(super) fn model_key(model: &str) -> String {
    let mut key = String::with_capacity(model.len());
    for word in model.split([' ', '-', '_']).filter(|word| !word.is_empty()) {
        if !key.is_empty() {
            key.push('-');
        }
        key.push_str(&word.to_ascii_lowercase());
    }
    match key.strip_prefix("nvidia-") {
        Some(rest) => rest.to_owned(),
        None => key,
    }
}

/// Digits alone: the standard parser would take a sign too.
fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn is_code_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_have_one_name_in_all_spellings() {
        let check = |text: &str, canonical: &str, compute: Option<u16>, slices: u16, gigabytes: u16| {
            let name = ProfileName::parse(text).unwrap_or_else(|| panic!("{text} is a profile"));
            assert_eq!(name.to_string(), canonical, "{text}");
            assert_eq!((name.compute_instance, name.slices, name.gigabytes), (compute, slices, gigabytes));
            assert_eq!(ProfileName::parse(canonical), Some(name), "{text}");
        };
        check("1g.10gb", "1g.10gb", None, 1, 10);
        check(" MIG 1g.10gb ", "1g.10gb", None, 1, 10);
        check("MIG 1G.10GB+ME", "1g.10gb+me", None, 1, 10);
        check("1c.3g.40gb", "1c.3g.40gb", Some(1), 3, 40);
        check("3c.3g.40gb", "3g.40gb", None, 3, 40);
        check("7g.79gb", "7g.79gb", None, 7, 79);
        check("nvidia.com/mig-1g.10gb.me", "1g.10gb+me", None, 1, 10);
        check("mig-1g.24gb.me.all", "1g.24gb+me.all", None, 1, 24);
        check("nvidia.com/mig-1g.24gb.gfx", "1g.24gb+gfx", None, 1, 24);
        check("1g.24gb-me", "1g.24gb-me", None, 1, 24);
        check("mig-1c.4g.96gb", "1c.4g.96gb", Some(1), 4, 96);
    }

    #[test]
    fn what_is_no_profile_is_none() {
        for text in [
            "",
            "1g",
            "1g.10",
            "g.10gb",
            "0g.10gb",
            "1g.gb",
            "+1g.10gb",
            "1g.+10gb",
            "1g.10gb.shared",
            "1g.10gb+vg",
            "1g.10gb..me",
            "0c.1g.10gb",
            "4c.3g.40gb",
            "1c.1c.3g.40gb",
            "1g.70000gb",
            "nvidia.com/gpu",
            "nvidia.com/1g.10gb",
            "A100-40C",
        ] {
            assert_eq!(ProfileName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_compute_instance_knows_its_gpu_instance_and_its_engines() {
        let name = ProfileName::parse("1c.2g.48gb+me.all").unwrap();
        assert_eq!(name.gpu_instance().to_string(), "2g.48gb+me.all");
        let media = |text: &str| ProfileName::parse(text).unwrap().media();
        assert_eq!(media("1g.24gb+me.all"), Media::All);
        assert_eq!(media("1g.24gb+me"), Media::One);
        assert_eq!(media("1g.24gb-me"), Media::Without);
        assert_eq!((media("1g.24gb+gfx"), media("1g.24gb")), (Media::None, Media::None));
    }

    #[test]
    fn vgpu_types_are_read_from_the_right() {
        let check = |text: &str, shown: &str, board: &str, slices: Option<u16>, series: Series, mib: u32| {
            let name = VgpuTypeName::parse(text).unwrap_or_else(|| panic!("{text} is a vGPU type"));
            assert_eq!(name.to_string(), shown, "{text}");
            assert_eq!(
                (name.board.as_str(), name.gi_slices, name.series, name.framebuffer_mib()),
                (board, slices, series, mib)
            );
        };
        check("A100-40C", "A100-40C", "A100", None, Series::C, 40_960);
        check("GRID T4-16Q", "T4-16Q", "T4", None, Series::Q, 16_384);
        check("grid_t4-16q", "T4-16Q", "T4", None, Series::Q, 16_384);
        check("NVIDIA H100-20C", "H100-20C", "H100", None, Series::C, 20_480);
        check("nvidia_h200x-1-35c", "H200X-1-35C", "H200X", Some(1), Series::C, 35_840);
        check("A100-4-20C", "A100-4-20C", "A100", Some(4), Series::C, 20_480);
        check("H100-1-10CME", "H100-1-10CME", "H100", Some(1), Series::C, 10_240);
        check("DC-2-12Q", "DC-2-12Q", "DC", Some(2), Series::Q, 12_288);
        check("M60-2B4", "M60-2B4", "M60", None, Series::B, 2_048);
        check("M60-0Q", "M60-0Q", "M60", None, Series::Q, 512);
        check("RTX6000-Ada-48Q", "RTX6000-ADA-48Q", "RTX6000-ADA", None, Series::Q, 49_152);
        check("L40S-48A", "L40S-48A", "L40S", None, Series::A, 49_152);
        assert_eq!(VgpuTypeName::parse("M60-2B4").unwrap().displays, Some(4));
        assert!(VgpuTypeName::parse("H100-1-10CME").unwrap().media);
    }

    #[test]
    fn what_is_no_vgpu_type_is_none() {
        for text in [
            "",
            "nvidia-476",
            "nvidia-h100xm-8c-",
            "T4",
            "T4-16",
            "T4-Q",
            "T4-16X",
            "T4-16QQ",
            "-16Q",
            "-4-16Q",
            "T4-16Q44",
            "T4 -16Q",
            "T4-\u{e9}",
            "1g.10gb",
        ] {
            assert_eq!(VgpuTypeName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn models_are_compared_without_vendor_case_and_separators() {
        assert_eq!(model_key("NVIDIA A100-SXM4-80GB"), "a100-sxm4-80gb");
        assert_eq!(model_key("nvidia_a100  sxm4_80GB"), "a100-sxm4-80gb");
        assert_eq!(model_key("NVIDIA"), "nvidia");
        assert_eq!(model_key("Tesla T4"), "tesla-t4");
    }
}
