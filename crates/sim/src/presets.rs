//! Machines of the published tables, and others that people have.

use std::fmt;

use homing_topology::Machine;

/// A machine by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// The grid, as for [`Machine::from_grid`].
    pub grid: &'static str,
}

/// All of them. Two-socket machines have a node for each socket. A preset is only a shape: what
/// cold data costs is Zen 2's on all of them ([`Costs`](crate::Costs)).
pub const PRESETS: [Preset; 9] = [
    Preset {
        name: "ryzen-9-3900x",
        about: "AMD Ryzen 9 3900X (Zen 2): 4 caches of 3 cores",
        grid: "4x3x2",
    },
    Preset {
        name: "ryzen-9-7950x",
        about: "AMD Ryzen 9 7950X (Zen 4): 2 caches of 8 cores",
        grid: "2x8x2",
    },
    Preset {
        name: "epyc-milan-36c",
        about: "AMD EPYC Milan (Zen 3), one socket: 6 caches of 6 cores",
        grid: "6x6x2",
    },
    Preset {
        name: "epyc-bergamo-88c",
        about: "AMD EPYC Bergamo (Zen 4c), one socket: 11 caches of 8 cores",
        grid: "11x8x2",
    },
    Preset {
        name: "xeon-cooper-lake-26c",
        about: "Intel Xeon Cooper Lake, one socket: one cache of 26 cores",
        grid: "1x26x2",
    },
    Preset {
        name: "xeon-skylake-2s",
        about: "Intel Xeon Skylake, two sockets: a cache of 20 cores each",
        grid: "2x1x1x20x2",
    },
    Preset {
        name: "xeon-8358-2s",
        about: "Intel Xeon Platinum 8358 (Ice Lake), two sockets: a cache of 32 cores each",
        grid: "2x1x1x32x2",
    },
    Preset {
        name: "epyc-7763-2s",
        about: "AMD EPYC 7763 (Zen 3), two sockets: 8 caches of 8 cores each",
        grid: "2x1x8x8x2",
    },
    Preset {
        name: "epyc-9654-2s",
        about: "AMD EPYC 9654 (Zen 4), two sockets: 12 caches of 8 cores each",
        grid: "2x1x12x8x2",
    },
];

impl Preset {
    /// The one of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// The machine, its CPUs numbered as Linux does on these: first threads first.
    pub fn machine(&self) -> Machine {
        Machine::from_grid_siblings_last(self.grid).expect("the presets are grids")
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use homing_topology::Scope;

    use super::*;

    #[test]
    fn presets_have_the_published_shapes() {
        let shape = |name| {
            let machine = Preset::find(name).unwrap().machine();
            let pods = |scope| machine.pods(scope).len();
            (machine.online().len(), pods(Scope::Smt), pods(Scope::Cache), pods(Scope::Numa))
        };
        assert_eq!(shape("ryzen-9-3900x"), (24, 12, 4, 1));
        assert_eq!(shape("ryzen-9-7950x"), (32, 16, 2, 1));
        assert_eq!(shape("epyc-milan-36c"), (72, 36, 6, 1));
        assert_eq!(shape("epyc-bergamo-88c"), (176, 88, 11, 1));
        assert_eq!(shape("xeon-cooper-lake-26c"), (52, 26, 1, 1));
        assert_eq!(shape("xeon-skylake-2s"), (80, 40, 2, 2));
        assert_eq!(shape("xeon-8358-2s"), (128, 64, 2, 2));
        assert_eq!(shape("epyc-7763-2s"), (256, 128, 16, 2));
        assert_eq!(shape("epyc-9654-2s"), (384, 192, 24, 2));
        let ryzen = Preset::find("ryzen-9-3900x").unwrap().machine();
        let cores: Vec<String> = ryzen.pods(Scope::Smt).iter().map(ToString::to_string).collect();
        assert_eq!(cores[..2], ["0,12", "1,13"]);
    }
}
