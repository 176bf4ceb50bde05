//! What can be changed of a workqueue while it is in use. Each change is for items queued from then
//! on. Items already queued stay where they are and are served from there; none is lost or delayed.
//!
//! After 255 combinations of scope, pull cost, strictness, nice, localization, mask and whether
//! items block in a runtime's life, changes to new ones are refused
//! ([`WorkqueueError::TooManyPools`]).

use homing_sched::{Affinity, Auto, Nice, PullCost};
use homing_topology::{CpuSet, Scope};

use crate::workqueues::builder::{WorkqueueError, bad_max_active, check_cpumask};
use crate::workqueues::gate::{Gate, Kind, is_max_active};
use crate::workqueues::state::{Chosen, Kinds};
use crate::workqueues::workqueue::Workqueue;

impl Workqueue {
    /// The scope and strictness in force.
    pub fn affinity(&self) -> Affinity {
        self.state().attributes().affinity
    }

    /// Whether the scope is the runtime's default, and follows its changes.
    pub fn affinity_is_default(&self) -> bool {
        self.state().chosen().scope_is_default
    }

    /// Whether scope and pull cost are chosen by measurement.
    pub fn affinity_auto(&self) -> bool {
        self.state().is_auto()
    }

    /// Whether the issuing CPU comes before the rest of its pod: see
    /// [`WorkqueueBuilder::localize`](crate::WorkqueueBuilder::localize).
    pub fn localize(&self) -> bool {
        self.state().attributes().localize
    }

    /// How expensive it is assumed to be to fetch an item from another pod.
    pub fn pull_cost(&self) -> PullCost {
        self.state().attributes().pull_cost
    }

    /// The workqueue's share of a CPU's time.
    pub fn nice(&self) -> Nice {
        self.state().attributes().nice
    }

    /// The CPUs that items may run on; `None`: all.
    pub fn cpumask(&self) -> Option<CpuSet> {
        self.state().chosen().cpumask
    }

    /// How many items may be active at a time; `None`: any number.
    pub fn max_active(&self) -> Option<u32> {
        self.state().chosen().max_active
    }

    /// How many items each NUMA node may have active in any case, whatever its share.
    pub fn min_active(&self) -> u32 {
        self.state().min_active()
    }

    /// Changes the scope. From then on it follows neither the runtime's default nor what is
    /// measured.
    ///
    /// # Errors
    /// [`WorkqueueError::Fixed`] if the workqueue is per-CPU; [`WorkqueueError::TooManyPools`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use homing_runtime::Scope;
    ///
    /// let crypt = runtime.workqueue("crypt").affinity_scope(Scope::Cache).build()?;
    /// crypt.set_affinity_scope(Scope::Numa)?;
    /// assert_eq!(crypt.affinity().scope, Scope::Numa);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_affinity_scope(&self, scope: Scope) -> Result<(), WorkqueueError> {
        self.unbound("affinity_scope")?;
        self.end_auto(|chosen| {
            chosen.attributes.affinity.scope = scope;
            chosen.scope_is_default = false;
        })
    }

    /// Makes the scope follow the runtime's default, as it is now and as it changes.
    ///
    /// # Errors
    /// As for [`Workqueue::set_affinity_scope`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use homing_runtime::Scope;
    ///
    /// let logs = runtime.workqueue("logs").affinity_scope(Scope::Cpu).build()?;
    /// assert!(!logs.affinity_is_default());
    /// logs.set_affinity_default()?;
    /// runtime.set_default_affinity_scope(Scope::Numa)?;
    /// assert_eq!(logs.affinity().scope, Scope::Numa);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_affinity_default(&self) -> Result<(), WorkqueueError> {
        self.unbound("affinity_scope")?;
        self.end_auto(|chosen| chosen.scope_is_default = true)
    }

    /// `true` leaves the choice of scope and pull cost to measurement; `false` fixes both as they
    /// are. [`Workqueue::set_affinity_scope`] and [`Workqueue::set_pull_cost`] end the measurement.
    ///
    /// The scope is found by experiment. The next wider and the next narrower scope take turns with
    /// the one in use, in windows of some hundredths of a second and 1,024 items or more, until it
    /// is clear whether more items get done. If the items come from outside, what counts is whether
    /// they cost less: in the time they run, which remote caches make longer, and the time they
    /// wait while a CPU is idle, which small pods make longer. A scope that is no better rests:
    /// 0.4 s, then twice as long each time, up to half a minute, until the load changes. The pull
    /// cost is by how much fetched items run longer than those of their own pod.
    ///
    /// Limits: a load that swings as fast as these windows looks like noise, so nothing changes.
    /// The nearest optimum is found, one scope at a time. Other workqueues are not taken into
    /// account. The strictness is left to you.
    ///
    /// # Errors
    /// [`WorkqueueError::Fixed`] if the workqueue is per-CPU.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let requests = runtime.workqueue("requests").affinity_auto(true).build()?;
    /// assert!(requests.affinity_auto());
    /// requests.set_affinity_scope(homing_runtime::Scope::Cache)?;
    /// assert!(!requests.affinity_auto());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_affinity_auto(&self, auto: bool) -> Result<(), WorkqueueError> {
        self.unbound("affinity_scope")?;
        let layout = self.shared().dispatch.layout();
        self.change(|chosen| chosen.scope_is_default = false)?;
        self.state().set_auto(auto.then(|| Auto::new(layout, self.affinity().scope)));
        self.watch_if_auto();
        Ok(())
    }

    /// Makes a change. If that succeeds, scope and pull cost are no longer chosen by measurement.
    fn end_auto(&self, change: impl FnOnce(&mut Chosen)) -> Result<(), WorkqueueError> {
        let changed = self.state().end_auto(|| self.change(change));
        self.watch_if_auto();
        changed
    }

    fn watch_if_auto(&self) {
        if self.affinity_auto() {
            self.shared().auto.add(self.state());
        }
    }

    /// Changes the strictness.
    ///
    /// # Errors
    /// As for [`Workqueue::set_affinity_scope`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").build()?;
    /// logs.set_affinity_strict(true)?;
    /// assert!(logs.affinity().strict);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_affinity_strict(&self, strict: bool) -> Result<(), WorkqueueError> {
        self.unbound("affinity_strict")?;
        self.change(|chosen| chosen.attributes.affinity.strict = strict)
    }

    /// Changes the CPUs that items may run on; `None`: all.
    ///
    /// # Errors
    /// [`WorkqueueError::Cpumask`] if none of them is online; otherwise as for
    /// [`Workqueue::set_affinity_scope`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").build()?;
    /// let first = runtime.cpus().first().ok_or("no CPU")?;
    /// logs.set_cpumask(Some(homing_runtime::CpuSet::of(first)))?;
    /// assert_eq!(logs.cpumask().map(|cpus| cpus.len()), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_cpumask(&self, cpus: Option<CpuSet>) -> Result<(), WorkqueueError> {
        self.unbound("cpumask")?;
        if let Some(cpus) = &cpus {
            check_cpumask(self.shared(), self.name(), cpus)?;
        }
        self.change(|chosen| chosen.cpumask = cpus)?;
        self.shared().share_limits(self.state());
        Ok(())
    }

    /// Changes [localization](crate::WorkqueueBuilder::localize).
    ///
    /// # Errors
    /// As for [`Workqueue::set_affinity_scope`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").build()?;
    /// logs.set_localize(true)?;
    /// assert!(logs.localize());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_localize(&self, localize: bool) -> Result<(), WorkqueueError> {
        self.unbound("localize")?;
        self.change(|chosen| chosen.attributes.localize = localize)
    }

    /// Changes how expensive it is assumed to be to fetch an item from another pod: items are left
    /// to their own pod for that much longer. The cost is no longer measured
    /// ([`Workqueue::set_affinity_auto`]).
    ///
    /// # Errors
    /// As for [`Workqueue::set_affinity_scope`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use homing_runtime::PullCost;
    ///
    /// let logs = runtime.workqueue("logs").build()?;
    /// let twice = PullCost::from_percent(200).ok_or("one of PullCost::ALL")?;
    /// logs.set_pull_cost(twice)?;
    /// assert_eq!(logs.pull_cost(), twice);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_pull_cost(&self, cost: PullCost) -> Result<(), WorkqueueError> {
        self.unbound("pull_cost")?;
        self.end_auto(|chosen| chosen.attributes.pull_cost = cost)
    }

    /// Changes the workqueue's share of a CPU's time.
    ///
    /// # Errors
    /// [`WorkqueueError::TooManyPools`].
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// use homing_runtime::Nice;
    ///
    /// let urgent = runtime.workqueue("urgent").build()?;
    /// urgent.set_nice(Nice::HIGHPRI)?;
    /// assert_eq!(urgent.nice().get(), -20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_nice(&self, nice: Nice) -> Result<(), WorkqueueError> {
        self.change(|chosen| chosen.attributes.nice = nice)
    }

    /// Changes how many items may be active at a time; `None`: any number. If the limit rises,
    /// items that wait begin at once; if it falls, none that is active stops. Items that were
    /// queued before there ever was a limit do not count.
    ///
    /// # Errors
    /// [`WorkqueueError::Limit`] if the limit is outside 1 to 2048; [`WorkqueueError::Fixed`] if
    /// the workqueue is ordered.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").max_active(4).build()?;
    /// logs.set_max_active(Some(16))?;
    /// let error = logs.set_max_active(Some(0)).unwrap_err();
    /// assert!(error.to_string().contains("1 to 2048"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_max_active(&self, max_active: Option<u32>) -> Result<(), WorkqueueError> {
        if self.state().kinds.ordered {
            return Err(self.fixed("ordered", "max_active"));
        }
        if let Some(value) = max_active.filter(|max| !is_max_active(*max)) {
            return Err(bad_max_active(self.name().to_owned(), value));
        }
        self.change(|chosen| chosen.max_active = max_active)?;
        self.gate();
        self.shared().share_limits(self.state());
        Ok(())
    }

    /// Changes how many items each NUMA node may have active in any case: that many items that wait
    /// for each other make progress. Default: 8, or `max_active` if that is less.
    ///
    /// # Errors
    /// [`WorkqueueError::Limit`] above `max_active`; [`WorkqueueError::Fixed`] if the workqueue is
    /// ordered or per-CPU.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").max_active(16).build()?;
    /// assert_eq!(logs.min_active(), 8);
    /// logs.set_min_active(2)?;
    /// assert_eq!(logs.min_active(), 2);
    /// let error = logs.set_min_active(17).unwrap_err();
    /// assert!(error.to_string().contains("0 to 16"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_min_active(&self, min_active: u32) -> Result<(), WorkqueueError> {
        let Kinds { ordered, per_cpu, .. } = self.state().kinds;
        if ordered || per_cpu {
            return Err(self.fixed(if ordered { "ordered" } else { "per-CPU" }, "min_active"));
        }
        let most = self.max_active().unwrap_or(homing_sched::MAX_ACTIVE_MAX);
        if min_active > most {
            return Err(WorkqueueError::Limit {
                name: self.name().to_owned(),
                attribute: "min_active",
                value: min_active,
                accepted: format!("0 to {most}, its max_active"),
            });
        }
        self.gate().set_min_active(min_active);
        self.shared().activate(self.state());
        Ok(())
    }

    /// The gate, made if there is none.
    pub(crate) fn gate(&self) -> &Gate {
        let Kinds { ordered, per_cpu, .. } = self.state().kinds;
        self.state().gate_or_make(|| {
            let chosen = self.state().chosen();
            let cpus = self.shared().cpus_by_node(&chosen);
            let online = self.shared().dispatch.layout().machine().online();
            let last = online.iter().last().map_or(0, homing_topology::CpuId::index);
            let (kind, slots) = match (ordered, per_cpu) {
                (true, _) => (Kind::Ordered, 1),
                (_, true) => (Kind::PerCpu, last + 1),
                _ => (Kind::Nodes, cpus.len() + 1),
            };
            Gate::new(kind, slots, chosen.max_active, cpus)
        })
    }

    fn unbound(&self, attribute: &'static str) -> Result<(), WorkqueueError> {
        if self.state().kinds.per_cpu { Err(self.fixed("per-CPU", attribute)) } else { Ok(()) }
    }

    fn fixed(&self, kind: &'static str, attribute: &'static str) -> WorkqueueError {
        WorkqueueError::Fixed { name: self.name().to_owned(), kind, attribute }
    }

    fn change(&self, change: impl FnOnce(&mut Chosen)) -> Result<(), WorkqueueError> {
        let (state, shared) = (self.state(), self.shared());
        let changed = shared.workqueues.with_default_scope(|default| {
            let change = |chosen: &mut Chosen| {
                let followed = chosen.scope_is_default;
                change(chosen);
                if chosen.scope_is_default && !followed {
                    chosen.attributes.affinity.scope = default;
                }
            };
            state.change(change, |chosen| shared.pool_with(state.kinds, chosen))
        });
        changed.ok_or_else(|| WorkqueueError::TooManyPools { name: self.name().to_owned() })
    }
}
