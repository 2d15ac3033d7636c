-- A product's own schema as it should be: what the audit of it finds is the fault that a test adds.
create role shop_owner;
create role shop_app login;
create schema shop authorization shop_owner;
grant usage on schema shop to shop_app;

create function shop.tenant() returns uuid language sql stable
return nullif(current_setting('shop.tenant_id', true), '')::uuid;

create table shop.orders (
  tenant_id uuid not null,
  id uuid not null default gen_random_uuid(),
  note text not null default '',
  primary key (tenant_id, id)
);
create table shop.lines (
  tenant_id uuid not null,
  order_id uuid not null,
  number int not null,
  primary key (tenant_id, order_id, number),
  foreign key (tenant_id, order_id) references shop.orders (tenant_id, id)
);
create table shop.events (
  tenant_id uuid not null,
  at timestamptz not null,
  primary key (tenant_id, at)
) partition by range (at);
create table shop.events_2026 partition of shop.events for values from ('2026-01-01') to ('2027-01-01');

alter function shop.tenant() owner to shop_owner;
alter table shop.orders owner to shop_owner;
alter table shop.lines owner to shop_owner;
alter table shop.events owner to shop_owner;
alter table shop.events_2026 owner to shop_owner;
alter table shop.orders enable row level security, force row level security;
alter table shop.lines enable row level security, force row level security;
alter table shop.events enable row level security, force row level security;
alter table shop.events_2026 enable row level security, force row level security;
create policy isolation on shop.orders using (tenant_id = shop.tenant()) with check (tenant_id = shop.tenant());
create policy isolation on shop.lines using (tenant_id = shop.tenant()) with check (tenant_id = shop.tenant());
create policy isolation on shop.events using (tenant_id = shop.tenant()) with check (tenant_id = shop.tenant());
grant select, insert, update, delete on shop.orders, shop.lines, shop.events to shop_app;
