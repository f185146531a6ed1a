// The threads that move bytes: few for a process, however many connections it has.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "sockets.h"

namespace bagua_net {

using Clock = std::chrono::steady_clock;

// What a reactor calls, always on its one thread.
class Pollable {
 public:
  virtual ~Pollable() = default;
  virtual void on_events(uint32_t events) = 0;
  // From time to time. `was_away`: this process itself was stopped, so silence tells nothing.
  virtual void on_tick(Clock::time_point now, bool was_away) = 0;
};

// One thread and its epoll. Calls may come from any thread, unless they say otherwise.
class Reactor {
 public:
  Reactor();
  ~Reactor();

  void add(const Fd& fd, uint32_t events, Pollable* pollable);
  void change(const Fd& fd, uint32_t events, Pollable* pollable);
  // No more events for it; ticks go on.
  void detach(const Fd& fd);
  void attach(const Fd& fd, uint32_t events, Pollable* pollable);
  // Once this returns the reactor never again calls `pollable`. Not from the reactor's thread.
  void remove(const Fd& fd, Pollable* pollable);
  // Like remove, from within a call of `pollable`, which must outlive that call.
  void remove_here(const Fd& fd, Pollable* pollable);

 private:
  void run();
  void wake();
  void tick();
  void run_tasks();
  bool is_member(Pollable* pollable);

  Fd epoll_, wake_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::unordered_set<Pollable*> members_;
  std::vector<std::function<void()>> tasks_;
  bool is_stopping_ = false;
  Clock::time_point last_tick_;
  std::thread thread_;
};

// The reactors of this process: started with its first stream, ended with its last.
class ReactorPool {
 public:
  // The pool that all share while anybody holds it.
  static std::shared_ptr<ReactorPool> get(int num_threads);

  explicit ReactorPool(int num_threads);
  Reactor& next();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Reactor>> reactors_;
  size_t next_ = 0;
};

}  // namespace bagua_net
