use homing_sim::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let model = HostModel::ALL.into_iter().find(|m| m.name() == args[1]).unwrap();
    let secs: u64 = args[2].parse().unwrap();
    let seeds: u64 = args[3].parse().unwrap();
    let machine = Preset::find("ryzen-9-3900x").unwrap().machine();
    let mut costs = Costs::default(); let (mut crypt, mut issuer) = (0, 0);
    let mut rules = Rules::new(model, 24);
    for a in &args[4..] { match a.as_str() {
        "noactive" => rules.active_balance = false, "nohot" => rules.cache_hot = false,
        "nocredit" => rules.sleeper_credit = false, "nosis" => rules.sis_util = false,
        "nocost" => rules.newidle_costs_ns = [0; 3], "nonewidle" => rules.newidle = false,
        "noest" => rules.util_est = false, "noaffine" => rules.wake_affine = false, 
        "grouped" => rules.issuers_weight = 1024,
        a => if let Some((k, v)) = a.split_once('=') { let v: u64 = v.parse().unwrap(); match k {
            "pkg" => rules.newidle_costs_ns[2] = v * 1000, "mc" => rules.newidle_costs_ns[1] = v * 1000, "smt" => rules.newidle_costs_ns[0] = v * 1000,
            "spent" => rules.newidle_spent_per_mille = v, "hot" => rules.migration_cost_ns = v * 1000,
            "tick" => rules.tick_ns = v * 1000, "gran" => rules.wakeup_granularity_ns = v * 1000,
            "crypt" => crypt = v, "issuer" => issuer = v, 
            k => assert!(costs.set(k, Cost { value: v, source: Source::Guessed("here") }), "{k}") } } } }
    for (name, jobs) in [("HIGH", 24), ("MED", 8), ("LOW", 4)] {
        if args.iter().any(|a| a=="low") && name != "LOW" { continue } if args.iter().any(|a| a=="nohigh") && name == "HIGH" { continue }
        if args.iter().any(|a| a=="grp") { rules.issuers_weight = 1024 / jobs as u64; }
        let mut base = 0.0;
        let mut policies: Vec<Policy> = KernelSettings::PUBLISHED.map(Policy::Kernel).to_vec();
        policies.push(Policy::Homing(HomingSettings::default()));
        for policy in policies {
            let (mut bw, mut util, mut ev) = (vec![], 0.0, 0);
            let mut moves = 0; let mut im = 0; let mut pulled=0; let mut wakes=0; let mut done=0;
            let t = std::time::Instant::now();
            for seed in 0..seeds {
                let mut load = CryptLoad::published(jobs); if crypt > 0 { load.crypt_ns = crypt } if issuer > 0 { load.issuer_ns = issuer }
                let run = DmCrypt { load, policy: policy.clone(), warm_up_ns: 500_000_000, measured_ns: secs * 1_000_000_000 };
                let r = run.run(&machine, &costs, &rules, seed);
                bw.push(r.rate * 32.0 / 1024.0); util += r.util_pct / seeds as f64; ev += r.events;
                moves += r.host.far_moves; im += r.host.issuer_far_moves; pulled += r.crew.pulled; wakes += r.crew.wakes; done += r.crew.done;
            }
            let el = t.elapsed().as_secs_f64();
            let mean = bw.iter().sum::<f64>() / bw.len() as f64;
            let sd = (bw.iter().map(|b| (b - mean).powi(2)).sum::<f64>() / bw.len() as f64).sqrt();
            if base == 0.0 { base = mean }
            println!("{name:5} {:28} {mean:8.1} ({sd:5.1}) util {util:6.2}  d {:+6.2}%   far {} issuers {} per s; pulled {:.3} wakes {:.3} per item; {:.1} Mev/s", policy.to_string(), (mean / base - 1.0) * 100.0, moves / secs / seeds, im / secs / seeds, pulled as f64/done as f64, wakes as f64/done as f64, ev as f64 / el / 1e6);
        }
    }
}
