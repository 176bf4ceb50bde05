//! Next to other executors: handles awaited on tokio, tokio's and async-io's timers and sockets in
//! our futures. `cargo test -p homing-runtime --all-features --test executors`.

#[cfg(feature = "async-io")]
use homing_runtime::CpuSet;
use homing_runtime::Runtime;

#[cfg(feature = "async-io")]
fn one_cpu() -> CpuSet {
    Runtime::new().unwrap().cpus().first().into_iter().collect()
}

#[test]
fn handles_are_awaited_on_tokio() {
    let runtime = Runtime::new().unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let sum: u64 = tokio.block_on(async {
        let mut sum = 0;
        for n in 0..100 {
            sum += runtime.queue(move || n).await.unwrap();
        }
        sum
    });
    assert_eq!(sum, 4950);
}

#[cfg(feature = "tokio")]
#[test]
fn our_futures_use_tokio() {
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let tokio =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let runtime = Runtime::builder().tokio(tokio.handle().clone()).build().unwrap();
    let echoed = runtime.spawn(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let mut client = tokio::net::TcpStream::connect(listener.local_addr()?).await?;
        let (mut server, _) = listener.accept().await?;
        client.write_all(b"homing").await?;
        let mut read = [0; 6];
        server.read_exact(&mut read).await?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        std::io::Result::Ok(read)
    });
    assert_eq!(&echoed.join().unwrap().unwrap(), b"homing");
}

#[cfg(feature = "tokio")]
#[test]
fn our_futures_have_tokio_also_when_they_are_dropped() {
    use std::sync::mpsc::{Sender, channel};

    struct Asks(Sender<bool>);
    impl Drop for Asks {
        fn drop(&mut self) {
            self.0.send(tokio::runtime::Handle::try_current().is_ok()).unwrap();
        }
    }
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let runtime = Runtime::builder().tokio(tokio.handle().clone()).build().unwrap();
    let (sender, told) = channel();
    let asks = Asks(sender);
    let never = runtime.spawn(async move {
        std::future::pending::<()>().await;
        drop(asks);
    });
    runtime.events().flush();
    assert!(never.abort() && told.recv().unwrap());
}

#[cfg(feature = "async-io")]
#[test]
fn our_futures_use_async_io_whoever_drives_it() {
    use async_io::{Async, Timer};
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    for drives in [true, false] {
        let runtime = Runtime::builder().cpus(one_cpu()).drive_io(drives).build().unwrap();
        let [server, client] =
            [(), ()].map(|()| Async::<UdpSocket>::bind(([127, 0, 0, 1], 0)).unwrap());
        for (from, to) in [(&server, &client), (&client, &server)] {
            from.get_ref().connect(to.get_ref().local_addr().unwrap()).unwrap();
        }
        let server = runtime.spawn(async move {
            for _ in 0..500 {
                let mut byte = [0_u8];
                server.recv(&mut byte).await.unwrap();
                byte[0] = byte[0].wrapping_add(1);
                server.send(&byte).await.unwrap();
            }
        });
        let client = runtime.spawn(async move {
            let mut byte = [0_u8];
            for _ in 0..500 {
                client.send(&byte).await.unwrap();
                client.recv(&mut byte).await.unwrap();
            }
            byte[0]
        });
        // Other work goes on meanwhile, and wakes the worker that waits in the reactor.
        for n in 0..200 {
            assert_eq!(runtime.queue(move || n).join().unwrap(), n);
        }
        assert_eq!(client.join().unwrap(), 500_u32 as u8);
        server.join().unwrap();
        let began = Instant::now();
        runtime.spawn(async { _ = Timer::after(Duration::from_millis(20)).await }).join().unwrap();
        assert!(began.elapsed() >= Duration::from_millis(20));
        runtime.shutdown(Duration::from_secs(60)).unwrap();
    }
}
