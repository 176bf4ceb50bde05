//! What kind of CPU a machine has.

/// The CPU's name, from the contents of `/proc/cpuinfo`; on Arm, which has no names there, the
/// numbers of who designed it, which design it is and in which variant. `None` if nothing is told.
///
/// ```
/// use homing_lab::cpu_model;
///
/// let named = "processor : 0\nmodel name\t: Some CPU @ 3 GHz\n";
/// assert_eq!(cpu_model(named).as_deref(), Some("Some CPU @ 3 GHz"));
/// let arm = "processor : 0\nCPU implementer : 0x41\nCPU variant : 0x3\nCPU part : 0xd0c\n";
/// assert_eq!(cpu_model(arm).as_deref(), Some("CPU of 0x41 0xd0c 0x3"));
/// assert_eq!(cpu_model("processor : 0\n"), None);
/// ```
pub fn cpu_model(cpuinfo: &str) -> Option<String> {
    let value = |key: &str| {
        let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
    };
    let numbers = || {
        let [designer, part, variant] = ["implementer", "part", "variant"]
            .map(|key| value(&format!("CPU {key}")).unwrap_or_default());
        (!part.is_empty()).then(|| format!("CPU of {designer} {part} {variant}"))
    };
    value("model name").map(str::to_owned).or_else(numbers)
}
