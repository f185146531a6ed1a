#include "reactor.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>

namespace bagua_net {

namespace {

constexpr int kEventsAtOnce = 64;
constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::milliseconds kAway{1000};

void control(const Fd& epoll, int operation, int fd, uint32_t events, void* data) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = data;
  if (epoll_ctl(epoll.get(), operation, fd, &event) != 0) raise_system("epoll_ctl");
}

// Signals are for the threads of the program.
std::thread start_without_signals(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

Reactor::Reactor() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC)) {
  if (epoll_.get() < 0 || wake_.get() < 0) raise_system("making an epoll");
  control(epoll_, EPOLL_CTL_ADD, wake_.get(), EPOLLIN, nullptr);
  last_tick_ = Clock::now();
  thread_ = start_without_signals([this] { run(); });
}

Reactor::~Reactor() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake();
  thread_.join();
}

void Reactor::add(const Fd& fd, uint32_t events, Pollable* pollable) {
  const std::lock_guard lock(mutex_);
  members_.insert(pollable);
  control(epoll_, EPOLL_CTL_ADD, fd.get(), events, pollable);
}

void Reactor::change(const Fd& fd, uint32_t events, Pollable* pollable) {
  control(epoll_, EPOLL_CTL_MOD, fd.get(), events, pollable);
}

void Reactor::detach(const Fd& fd) { control(epoll_, EPOLL_CTL_DEL, fd.get(), 0, nullptr); }

void Reactor::attach(const Fd& fd, uint32_t events, Pollable* pollable) {
  control(epoll_, EPOLL_CTL_ADD, fd.get(), events, pollable);
}

void Reactor::remove(const Fd& fd, Pollable* pollable) {
  bool is_done = false;
  std::unique_lock lock(mutex_);
  tasks_.push_back([&] {
    remove_here(fd, pollable);
    const std::lock_guard inner(mutex_);
    is_done = true;
    done_.notify_all();
  });
  wake();
  done_.wait(lock, [&] { return is_done; });
}

void Reactor::remove_here(const Fd& fd, Pollable* pollable) {
  const std::lock_guard lock(mutex_);
  if (members_.erase(pollable) == 0) return;
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);  // it may be detached
}

bool Reactor::is_member(Pollable* pollable) {
  const std::lock_guard lock(mutex_);
  return members_.count(pollable) != 0;
}

void Reactor::wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

void Reactor::run() {
  std::array<epoll_event, kEventsAtOnce> events;
  for (;;) {
    const int num = epoll_wait(epoll_.get(), events.data(), kEventsAtOnce,
                               static_cast<int>(kTick.count()));
    for (int i = 0; i < num; ++i) {
      auto* pollable = static_cast<Pollable*>(events[i].data.ptr);
      if (pollable == nullptr) {
        uint64_t count;
        (void)!read(wake_.get(), &count, sizeof count);
      } else if (is_member(pollable)) {
        pollable->on_events(events[i].events);
      }
    }
    run_tasks();
    tick();
    const std::lock_guard lock(mutex_);
    if (is_stopping_) return;
  }
}

void Reactor::run_tasks() {
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
}

void Reactor::tick() {
  const auto now = Clock::now();
  if (now - last_tick_ < kTick) return;
  const bool was_away = now - last_tick_ > kAway;
  last_tick_ = now;
  std::vector<Pollable*> members;
  {
    const std::lock_guard lock(mutex_);
    members.assign(members_.begin(), members_.end());
  }
  for (Pollable* member : members) {
    if (is_member(member)) member->on_tick(now, was_away);
  }
}

ReactorPool::ReactorPool(int num_threads) {
  for (int i = 0; i < num_threads; ++i) reactors_.push_back(std::make_unique<Reactor>());
}

Reactor& ReactorPool::next() {
  const std::lock_guard lock(mutex_);
  return *reactors_[next_++ % reactors_.size()];
}

std::shared_ptr<ReactorPool> ReactorPool::get(int num_threads) {
  // Never destroyed: a process may exit while streams are open.
  static auto* mutex = new std::mutex;
  static auto* shared = new std::weak_ptr<ReactorPool>;
  const std::lock_guard lock(*mutex);
  auto pool = shared->lock();
  if (!pool) *shared = pool = std::make_shared<ReactorPool>(num_threads);
  return pool;
}

}  // namespace bagua_net
